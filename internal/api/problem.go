package api

import (
	"encoding/json"
	"net/http"
)

const problemType = "application/problem+json"

// Problem is an error as the API says it (RFC 9457). Its type is always
// about:blank: the status says what kind of problem it is.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Error returns the detail, or the title where there is none.
func (p Problem) Error() string {
	if p.Detail != "" {
		return p.Detail
	}
	return p.Title
}

func writeProblem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Problem{Title: http.StatusText(status), Status: status, Detail: detail})
}
