// Package web has the dashboard that directors serve: pages made by "make web" from the
// TypeScript beside this file.
package web

import (
	"embed"
	"io/fs"
)

//go:embed dist
var files embed.FS

// Pages returns the dashboard's files: index.html, and under assets what it needs, by names
// that change with what is in them.
func Pages() fs.FS {
	pages, err := fs.Sub(files, "dist")
	if err != nil {
		panic(err) // dist is there: it is embedded
	}
	return pages
}
