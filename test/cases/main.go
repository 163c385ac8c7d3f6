// Command cases runs the tests of faults that attackers, operators and bug reports have found, and
// says of each fault whether it is fixed.
//
// cases.txt has a line for each fault: its number, the package and the test that shows the right
// behavior, and what that is. A case whose test does not run counts as wrong.
package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

//go:embed cases.txt
var list string

// fault is a line of cases.txt.
type fault struct {
	number string // A1, of a list that the project keeps elsewhere
	pkg    string // ./internal/config
	test   string // TestX, or TestX/part
	right  string // what is right
}

// read parses the lines of cases.txt: four columns; the last may contain blanks.
func read(text string) (faults []fault, err error) {
	for n, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("cases.txt:%d: has %d columns: number, package, test, what is right", n+1, len(fields))
		}
		faults = append(faults, fault{fields[0], fields[1], fields[2], strings.Join(fields[3:], " ")})
	}
	return faults, nil
}

func main() {
	only := flag.String("run", "", "run only the cases whose number or test matches this `regexp`")
	verbose := flag.Bool("v", false, "show what the tests print")
	flag.Parse()
	if err := run(*only, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(only string, verbose bool) error {
	faults, err := read(list)
	if err != nil {
		return err
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	faults = slices.DeleteFunc(faults, func(f fault) bool { return !match.MatchString(f.number) && !match.MatchString(f.test) })
	right := 0
	outcomes := map[string]map[string]string{}
	for _, f := range faults {
		if outcomes[f.pkg] == nil {
			if outcomes[f.pkg], err = test(f.pkg, faults, verbose); err != nil {
				return err
			}
		}
		outcome := outcomes[f.pkg][f.test]
		switch outcome {
		case "pass":
			outcome = "ok"
			right++
		case "":
			outcome = "WRONG (the test did not run)"
		default:
			outcome = "WRONG (" + outcome + ")"
		}
		fmt.Printf("%-4s %-5s %s (%s, %s)\n", outcome, f.number, f.right, f.pkg, f.test)
	}
	fmt.Printf("%d of %d cases are right\n", right, len(faults))
	if right < len(faults) || right == 0 {
		return errors.New("not all cases are right")
	}
	return nil
}

// test runs the tests of a package's cases, and returns how each test and part of one ended.
func test(pkg string, faults []fault, verbose bool) (map[string]string, error) {
	var names []string
	for _, f := range faults {
		if name, _, _ := strings.Cut(f.test, "/"); f.pkg == pkg && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	cmd := exec.Command("go", "test", "-json", "-count", "1", "-timeout", "30m", "-run", "^("+strings.Join(names, "|")+")$", pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("test %s: %w", pkg, err)
	}
	outcomes, err := follow(out, verbose)
	if err != nil {
		return nil, fmt.Errorf("test %s: %w", pkg, err)
	}
	_ = cmd.Wait() // each case reports what failed
	return outcomes, nil
}

// follow reads what go test -json writes (go doc test2json).
func follow(out io.Reader, verbose bool) (map[string]string, error) {
	outcomes, said := map[string]string{}, map[string][]string{}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("read %q: %w", lines.Text(), err)
		}
		switch event.Action {
		case "output":
			if verbose {
				fmt.Fprint(os.Stderr, event.Output)
			}
			said[event.Test] = append(said[event.Test], event.Output)
		case "pass", "fail", "skip":
			outcomes[event.Test] = event.Action
			if event.Action == "fail" && !verbose {
				fmt.Fprint(os.Stderr, strings.Join(said[event.Test], ""))
			}
			delete(said, event.Test)
		}
	}
	return outcomes, lines.Err()
}
