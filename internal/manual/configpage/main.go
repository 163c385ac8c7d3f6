// Command configpage writes weir.yaml(5) of a version: configpage VERSION <docs/reference/configuration.md
package main

import (
	"fmt"
	"io"
	"os"

	"weir.io/weir/internal/manual"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "configpage:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("one argument is needed, the version, and not %d", len(args))
	}
	date, err := manual.Date()
	if err != nil {
		return err
	}
	document, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read the document: %w", err)
	}
	page, err := manual.Configuration(string(document), args[0], date)
	if err != nil {
		return err
	}
	_, err = out.Write(page)
	return err
}
