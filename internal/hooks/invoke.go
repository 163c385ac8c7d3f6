package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/program"
)

// mostSaid is how much of a server's answer is kept, in bytes.
const mostSaid = 1024

// invoke calls a hook once. The context bounds how long that takes.
func invoke(ctx context.Context, hook *model.Hook, call model.HookCall) error {
	text, err := json.Marshal(call)
	if err != nil {
		return fmt.Errorf("write what the hook is told: %w", err)
	}
	text = append(text, '\n')
	if hook.URL != "" {
		err = post(ctx, hook, text)
	} else {
		err = run(ctx, hook, text)
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("it takes longer than %v", hook.Timeout)
	}
	return err
}

// run runs the program with the call on its standard input.
func run(ctx context.Context, hook *model.Hook, call []byte) error {
	given, err := privilege.Give(hook.Capabilities)
	if err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	p := program.Program{Argv: hook.Exec, Stdin: call, Env: privilege.Environment(), Capabilities: given}
	said, err := p.Run(ctx)
	if err == nil || errors.As(err, new(*program.StartError)) {
		return err
	}
	return withWords(err, said)
}

// client follows no redirection: a POST would become a GET.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// post sends the call to the server. Anything but 200 to 299 is a failure.
func post(ctx context.Context, hook *model.Hook, call []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.URL, bytes.NewReader(call))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if hook.TokenFile != "" {
		token, err := os.ReadFile(hook.TokenFile)
		if err != nil {
			return fmt.Errorf("token-file: %w", err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	words, _ := io.ReadAll(io.LimitReader(response.Body, mostSaid))
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return withWords(errors.New(response.Status), string(words))
	}
	return nil
}

// withWords adds the hook's output, on one line.
func withWords(err error, words string) error {
	if words = strings.Join(strings.Fields(strings.ToValidUTF8(words, "?")), " "); words == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, words)
}
