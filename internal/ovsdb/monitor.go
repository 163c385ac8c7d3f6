package ovsdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Table is what a client wants to know of a table: which columns, of the rows that match the
// conditions; none: of all.
type Table struct {
	Columns []string `json:"columns"`
	Where   [][]any  `json:"where,omitempty"`
}

// None is the transaction that no database has: all rows come anew.
const None = "00000000-0000-0000-0000-000000000000"

// MonitorSince asks for all rows, or for the changes after a transaction that the server remembers, and
// for all later changes, in notifications with the name: ovsdb-server(7) section 4.1.15, of Open vSwitch
// 2.12. It returns whether the server remembers the transaction, the last one, and the rows.
func (c *Conn) MonitorSince(database, name string, tables map[string]Table, last string) (bool, string, Changes, error) {
	asked := map[string][]Table{}
	for table, of := range tables {
		asked[table] = []Table{of}
	}
	text, err := c.Call("monitor_cond_since", database, name, asked, last)
	if err != nil {
		return false, "", nil, err
	}
	var elements []json.RawMessage
	var found bool
	var changes Changes
	if err = json.Unmarshal(text, &elements); err == nil {
		err = values(elements, &found, &last, &changes)
	}
	if err != nil {
		return false, "", nil, fmt.Errorf("monitor_cond_since: %w", err)
	}
	return found, last, changes, nil
}

// Monitor is the same for a database that has no transactions to remember, such as _Server: section
// 4.1.12.
func (c *Conn) Monitor(database, name string, tables map[string]Table) (Changes, error) {
	asked := map[string][]Table{}
	for table, of := range tables {
		asked[table] = []Table{of}
	}
	text, err := c.Call("monitor_cond", database, name, asked)
	if err != nil {
		return nil, err
	}
	var changes Changes
	if err := json.Unmarshal(text, &changes); err != nil {
		return nil, fmt.Errorf("monitor_cond: %w", err)
	}
	return changes, nil
}

// Changed reads a notification of a monitor: its name, the changes, and the last transaction in them,
// which Monitor's notifications do not have.
func (m Message) Changed() (name, last string, changes Changes, err error) {
	switch m.Method {
	case "update2":
		err = values(m.Params, &name, &changes)
	case "update3":
		err = values(m.Params, &name, &last, &changes)
	case "monitor_canceled":
		err = errors.New("the server no longer has the database, or has another version of it")
	default:
		err = errors.New("a notification of no known kind")
	}
	if err != nil {
		return "", "", nil, fmt.Errorf("%s: %w", m.Method, err)
	}
	return name, last, changes, nil
}

// values reads an array of values of different types.
func values(elements []json.RawMessage, into ...any) error {
	if len(elements) != len(into) {
		return fmt.Errorf("%d values where %d are expected", len(elements), len(into))
	}
	for i, element := range elements {
		if err := json.Unmarshal(element, into[i]); err != nil {
			return err
		}
	}
	return nil
}

// Columns returns the names of a database's columns by table: get_schema of RFC 7047 section 4.1.2.
// Versions differ in them. An error says which databases the server has, if not this one.
func (c *Conn) Columns(database string) (map[string]map[string]bool, error) {
	text, err := c.Call("get_schema", database)
	if answered := (*Error)(nil); errors.As(err, &answered) && answered.Kind == "unknown database" {
		return nil, fmt.Errorf("the server has no database %s, but %s", database, c.databases())
	}
	if err != nil {
		return nil, err
	}
	var schema struct {
		Tables map[string]struct {
			Columns map[string]json.RawMessage `json:"columns"`
		} `json:"tables"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, fmt.Errorf("get_schema: %w", err)
	}
	columns := map[string]map[string]bool{}
	for table, of := range schema.Tables {
		columns[table] = map[string]bool{}
		for name := range of.Columns {
			columns[table][name] = true
		}
	}
	return columns, nil
}

// databases says in words which ones the server has.
func (c *Conn) databases() string {
	text, err := c.Call("list_dbs")
	var names []string
	if err != nil || json.Unmarshal(text, &names) != nil || len(names) == 0 {
		return "nobody knows which"
	}
	return strings.Join(names, " and ")
}

// Operation is part of a transaction: RFC 7047 section 5.2.
type Operation map[string]any

// Result is what one operation of a transaction did.
type Result struct {
	Error   string `json:"error"`
	Details string `json:"details"`
	Count   int    `json:"count"`
	Rows    []Row  `json:"rows"`
}

// Transaction returns the parameters of the request "transact".
func Transaction(database string, operations []Operation) []any {
	params := []any{database}
	for _, o := range operations {
		params = append(params, o)
	}
	return params
}

// Results reads the answer to the request "transact". The first operation that failed is the error, or
// what failed at the end, such as a constraint of a table.
func Results(text json.RawMessage) ([]Result, error) {
	var results []*Result // null after one that failed
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, fmt.Errorf("transact: %w", err)
	}
	var read []Result
	for _, r := range results {
		if r == nil {
			continue
		}
		if r.Error != "" {
			return nil, &Error{Kind: r.Error, Details: r.Details}
		}
		read = append(read, *r)
	}
	return read, nil
}
