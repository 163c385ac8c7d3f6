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
	"os/exec"
	"strings"
	"syscall"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// mostSaid is how much of a hook's output is kept, in bytes.
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

// run runs the program with the call on its standard input. When the time is over, the program is
// killed with all its children that have stayed in its process group.
func run(ctx context.Context, hook *model.Hook, call []byte) error {
	said := &beginning{}
	cmd := exec.CommandContext(ctx, hook.Exec[0], hook.Exec[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = bytes.NewReader(call), said, said, privilege.Environment()
	given, err := privilege.Give(hook.Capabilities)
	if err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, AmbientCaps: given}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // processes that it leaves behind may keep its output open
	err = cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil // it need not end the processes that it has started
	}
	return withWords(err, string(said.text))
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

// beginning keeps the beginning of what is written to it.
type beginning struct{ text []byte }

// Write never fails: a program does not end because it writes too much.
func (b *beginning) Write(text []byte) (int, error) {
	b.text = append(b.text, text[:min(len(text), mostSaid-len(b.text))]...)
	return len(text), nil
}
