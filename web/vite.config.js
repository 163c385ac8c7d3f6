import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

// The licence of what is built in asks to be where that is.
const licence = {
  name: "licence",
  generateBundle(_, files) {
    const text = readFileSync(new URL("node_modules/uplot/LICENSE", import.meta.url), "utf8").trim();
    for (const file of Object.values(files)) {
      if (file.type === "chunk") file.code = `/*! uPlot\n${text}\n*/\n${file.code}`;
    }
  },
};

// What is built is committed, so it must be the same wherever it is built: no file depends on
// a time or a path, and everything is in three files.
export default defineConfig({
  base: "./",
  plugins: [licence],
  build: {
    outDir: "dist",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0, // the pages' policy has no room for data: addresses
    cssCodeSplit: false,
  },
  server: { proxy: { "/v1": "http://127.0.0.1:6084" } },
});
