package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

const patience = 20 * time.Second

// listen sends the texts of events that a client of a socket hears.
func listen(t *testing.T, client *api.Client, earlier int) (heard <-chan string, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	texts, end := make(chan string, 5000), make(chan error, 1)
	go func() {
		end <- client.Events(ctx, api.EventQuery{Last: earlier, Follow: true}, func(e api.Event) error {
			texts <- fmt.Sprint(e.Kind, " ", e.Text)
			return nil
		})
	}()
	return texts, end
}

func hears(t *testing.T, heard <-chan string, want ...string) {
	t.Helper()
	for _, text := range want {
		select {
		case got := <-heard:
			if got != text {
				t.Fatalf("heard %q, want %q", got, text)
			}
		case <-time.After(patience):
			t.Fatalf("%q is not heard", text)
		}
	}
}

func TestEvents(t *testing.T) {
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	events := api.NewEvents()
	server.HandleEvents(events)
	events.Add(api.Event{Kind: api.EventSet, Text: "one"}, api.Event{Kind: api.EventSet, Text: "two"})
	client := serve(t, server)
	heard, ended := listen(t, client, 1)
	hears(t, heard, "set two")
	var there []string
	if err := client.Events(t.Context(), api.EventQuery{Last: 1000}, func(e api.Event) error {
		there = append(there, e.Text)
		return nil
	}); err != nil || !slices.Equal(there, []string{"one", "two"}) {
		t.Errorf("those that there are: %q, %v", there, err)
	}
	enough := errors.New("enough")
	if err := client.Events(t.Context(), api.EventQuery{Last: 2, Follow: true}, func(api.Event) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("who has enough of events hears %v", err)
	}
	later, _ := listen(t, client, 1000)
	hears(t, later, "set one", "set two")
	events.Add(api.Event{Kind: api.EventHealth, Text: "three\nlines\n\nand: more"})
	hears(t, heard, "health three\nlines\n\nand: more")
	hears(t, later, "health three\nlines\n\nand: more")
	events.Close()
	if err := <-ended; err != nil {
		t.Error("the end of the director is", err)
	}
	select {
	case text := <-heard:
		t.Errorf("%q is heard after the end", text)
	default:
	}
}

// What happens to one tenant pushes out its own events alone.
func TestEventsOfTenants(t *testing.T) {
	red, blue := model.Segment{Kind: model.SegmentVXLAN, ID: 1}, model.Segment{Kind: model.SegmentVXLAN, ID: 2}
	e := api.NewEvents()
	for n := range 10 {
		e.Add(api.Event{Segment: blue, Text: fmt.Sprint("blue ", n)}, api.Event{Text: fmt.Sprint("none ", n)})
	}
	for n := range 5000 {
		e.Add(api.Event{Segment: red, Text: fmt.Sprint("red ", n)})
	}
	many, red0 := map[model.Segment]int{}, ""
	for _, event := range api.KeptEvents(e) {
		if many[event.Segment]++; event.Segment == red && red0 == "" {
			red0 = event.Text
		}
	}
	if many[blue] != 10 || many[model.Segment{}] != 10 || many[red] != 980 || red0 != "red 4020" {
		t.Errorf("kept are %v, and of the busy segment from %s on", many, red0)
	}
}

// Whoever comes back hears what was missed, as far as it is kept, and nothing twice.
func TestEventsGoOn(t *testing.T) {
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	events := api.NewEvents()
	server.HandleEvents(events)
	for n := range 1500 {
		events.Add(api.Event{Kind: api.EventSet, Text: fmt.Sprint("event ", n)})
	}
	events.Close()
	ask := func(header, query string) (ids, texts []string) {
		r := httptest.NewRequest(http.MethodGet, "/v1/events"+query, nil)
		r.Header.Set("Last-Event-ID", header)
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, r)
		if got := w.Header().Get("Content-Type"); got != "text/event-stream" {
			t.Fatalf("the content type is %s: %s", got, w.Body)
		}
		lines := bufio.NewScanner(io.Reader(w.Body))
		for lines.Scan() {
			if id, is := strings.CutPrefix(lines.Text(), "id: "); is {
				ids = append(ids, id)
			}
			if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
				_, text, _ := strings.Cut(data, `"text":"`)
				text, _, _ = strings.Cut(text, `"`)
				texts = append(texts, text)
			}
		}
		return ids, texts
	}
	if _, texts := ask("", ""); len(texts) > 0 {
		t.Errorf("who wants what is new hears %q", texts)
	}
	ids, texts := ask("", "?last=1000")
	if len(texts) != 1000 || texts[0] != "event 500" || texts[999] != "event 1499" {
		t.Fatalf("of the last 1000 there are %d", len(texts))
	}
	if _, rest := ask(ids[996], "?last=7"); strings.Join(rest, " ") != "event 1497 event 1498 event 1499" {
		t.Errorf("behind %s comes %q", texts[996], rest)
	}
	if _, rest := ask("1", ""); len(rest) != 1000 {
		t.Errorf("who heard an earlier process last hears %d", len(rest))
	}
}
