package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Sets lists all sets.
func (c *Client) Sets(ctx context.Context) ([]SetInfo, error) {
	return get[[]SetInfo](ctx, c, "sets")
}

// Set returns an owner's set, with its tag and the state's revision.
func (c *Client) Set(ctx context.Context, owner string) (set Set, err error) {
	header, err := c.ask(ctx, http.MethodGet, "sets/"+url.PathEscape(owner), nil, nil, &set)
	if err != nil {
		return set, err
	}
	set.Tag = strings.Trim(header.Get("ETag"), `"`)
	set.Revision, err = strconv.ParseUint(header.Get("Weir-Revision"), 10, 64)
	return set, err
}

// PutSet makes the services in a text an owner's set, if the condition holds.
func (c *Client) PutSet(ctx context.Context, owner string, text SetText, when Condition) (SetChange, error) {
	header := text.header()
	switch {
	case when.Some:
		header.Set("If-Match", "*")
	case len(when.Tags) > 0:
		header.Set("If-Match", `"`+strings.Join(when.Tags, `", "`)+`"`)
	}
	if when.None {
		header.Set("If-None-Match", "*")
	}
	query := url.Values{}
	text.addPart(query)
	return c.change(ctx, http.MethodPut, "sets/"+url.PathEscape(owner)+"?"+query.Encode(), header, text)
}

func (c *Client) change(ctx context.Context, method, what string, header http.Header, text SetText) (change SetChange, err error) {
	answer, err := c.ask(ctx, method, what, header, text.Text, &change)
	change.Tag = strings.Trim(answer.Get("ETag"), `"`)
	return change, err
}

func (t SetText) addPart(query url.Values) {
	if t.Part > 0 {
		query.Set("part", strconv.FormatFloat(t.Part, 'g', -1, 64))
	}
}

func (t SetText) header() http.Header {
	media := "application/yaml"
	if t.JSON {
		media = "application/json"
	}
	return http.Header{"Content-Type": {media}}
}
