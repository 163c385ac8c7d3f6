package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Events calls take with each event, some earlier ones first, until the context ends or the
// director does.
func (c *Client) Events(ctx context.Context, earlier int, take func(Event)) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%sevents?last=%d", c.base, base, earlier), nil)
	if err != nil {
		return fmt.Errorf("listen to events: %w", err)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	endless := c.http
	endless.Timeout = 0
	response, err := endless.Do(request)
	if err != nil {
		return c.connectError(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return readProblem(response, json.NewDecoder(response.Body))
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
		take(event)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("listen to events: %w", err)
	}
	return nil
}
