"""What mkdocs does not know: the order of the pages is that of docs/README.md, and links to files
outside of docs/ become their names, because a site does not have them."""

import os
import re

LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
TITLE = re.compile(r"^# (.*)$", re.MULTILINE)


def title(docs, page):
    with open(os.path.join(docs, page), encoding="utf-8") as f:
        return TITLE.search(f.read())[1].replace("`", "")


def on_config(config):
    nav, docs = [{"Documents": "README.md"}], config["docs_dir"]
    with open(os.path.join(docs, "README.md"), encoding="utf-8") as f:
        sections = re.split(r"^## ", f.read(), flags=re.MULTILINE)[1:]
    listed = set()
    for section in sections:
        name, _, text = section.partition("\n")
        pages = []
        for _, target, _ in LINK.findall(text):
            if not target.startswith("..") and target not in listed:
                listed.add(target)
                pages.append({title(docs, target): target})
        if pages:
            nav.append({name: pages})
    config["nav"] = nav
    return config


def on_page_markdown(markdown, page, config, files):
    folder = os.path.dirname(page.file.src_uri)

    def inside(match):
        text, target, anchor = match.groups()
        path = os.path.normpath(os.path.join(folder, target))
        if "://" in target or not path.startswith(".."):
            return match[0]
        return f"{text} (`{path.removeprefix('../')}`)"

    return LINK.sub(inside, markdown)
