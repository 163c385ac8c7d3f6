package ovsdb

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// served connects to a server that is the test: no real one says what these say.
func served(t *testing.T, serve func(net.Conn)) *Conn {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		serve(conn)
	}()
	c, err := Open(t.Context(), "unix:"+socket, TLS{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		listener.Close()
		<-ended
	})
	return c
}

// What is no answer is an error that says so, and never taken for one.
func TestOddAnswers(t *testing.T) {
	for _, c := range []struct{ sends, says string }{
		{"", "the server closed the connection"},
		{`{"id":1,"result":`, "the server closed the connection"},
		{"HTTP/1.1 400 Bad Request\r\n\r\n", "read what the server sends: invalid character"},
		{`{"id":"other","result":[]}`, `an answer to a request "other"`},
		{`{"id":null,"error":"syntax error"}`, "an answer to a request null"},
		{`{"id":1,"error":"unknown method","result":null}`, "get_schema: unknown method"},
		{`{"id":1,"error":{"error":"not allowed","details":"read-only"},"result":null}`, "get_schema: not allowed: read-only"},
		{`{"id":1,"error":null,"result":[]}`, "get_schema: json:"},
		{`{"id":1,"result":"` + strings.Repeat("x", 5000) + `"}`, "a message has more than 4096 bytes"},
	} {
		conn := served(t, func(server net.Conn) {
			_, _ = bufio.NewReader(server).ReadString('}') // the request
			_, _ = server.Write([]byte(c.sends))
		})
		conn.input.most = 4096
		if _, err := conn.Columns("OVN_Southbound"); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("to %.60q the error is %v, and does not say %q", c.sends, err, c.says)
		}
	}
}

// Questions whether the client is there are answered, and notifications that come before an answer
// are not lost.
func TestCallKeepsNotifications(t *testing.T) {
	echoed := make(chan string, 1)
	conn := served(t, func(server net.Conn) {
		requests := json.NewDecoder(server)
		var request json.RawMessage
		_ = requests.Decode(&request)
		_, _ = server.Write([]byte(`{"id":"echo","method":"echo","params":["there?"]}
			{"id":null,"method":"update2","params":["name",{"T":{"row":{"insert":{"c":1}}}}]} {"id":1,"error":null,"result":["db"]}
			{"id":null,"method":"monitor_canceled","params":["name"]}`))
		_ = requests.Decode(&request)
		echoed <- string(request)
		_ = requests.Decode(&request) // until the client closes
	})
	if got, err := conn.Call("list_dbs"); err != nil || string(got) != `["db"]` {
		t.Fatalf("the answer is %s (%v)", got, err)
	}
	if got, want := <-echoed, `{"error":null,"id":"echo","result":["there?"]}`; got != want {
		t.Errorf("the question was answered %s, want %s", got, want)
	}
	m, err := conn.Next()
	if err != nil {
		t.Fatal(err)
	}
	if name, _, changes, err := m.Changed(); err != nil || name != "name" || string(changes["T"]["row"].Insert["c"]) != "1" {
		t.Errorf("the notification is %q, %v (%v)", name, changes, err)
	}
	if m, err = conn.Next(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := m.Changed(); err == nil || !strings.Contains(err.Error(), "no longer has the database") {
		t.Error("the monitor was canceled:", err)
	}
}

// A transaction fails by one of its operations, or at its end.
func TestResults(t *testing.T) {
	for text, says := range map[string]string{
		`[{},{"count":1},{"rows":[{"name":"x"}]}]`:                            "",
		`[{},{"error":"constraint violation","details":"two rows"},null]`:     "constraint violation: two rows",
		`[{"uuid":["uuid","a"]},{"error":"referential integrity violation"}]`: "referential integrity violation",
		`{}`: "transact: json:",
	} {
		results, err := Results(json.RawMessage(text))
		switch {
		case says == "" && (err != nil || len(results) != 3 || results[1].Count != 1 || len(results[2].Rows) != 1):
			t.Errorf("%s: %v (%v)", text, results, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: the error is %v, and does not say %q", text, err, says)
		}
	}
	if answered := (*Error)(nil); !errors.As(failure(json.RawMessage(`"unknown method"`)), &answered) || answered.Kind != "unknown method" {
		t.Errorf("an error that is a string is %v", answered)
	}
}
