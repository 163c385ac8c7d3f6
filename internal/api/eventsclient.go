package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// EventQuery is which events are asked for.
type EventQuery struct {
	Last   int  // how many past ones
	Follow bool // and new ones, too
}

// Events calls take with each event, the oldest first, until it returns an error, the context or
// the director ends, or there are no more.
func (c *Client) Events(ctx context.Context, q EventQuery, take func(Event) error) error {
	waiting, answered, cancel := c.patience(ctx, lookTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(waiting, http.MethodGet, fmt.Sprintf("%s%sevents?last=%d&follow=%t", c.base, base, q.Last, q.Follow), nil)
	if err != nil {
		return fmt.Errorf("listen to events: %w", err)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.connectError(silence(waiting, err))
	}
	defer response.Body.Close()
	answered()
	if response.StatusCode != http.StatusOK {
		return c.problem(ctx, "events", response, json.NewDecoder(response.Body))
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is {
			continue
		}
		var event Event
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		if err := take(event); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := lines.Err(); err != nil {
		return c.readError("events", silence(waiting, err))
	}
	return nil
}
