package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"weir.io/weir/internal/model"
)

const problemType = "application/problem+json"

// Problem is an error as the API says it (RFC 9457). Its type is always
// about:blank: the status says what kind of problem it is.
type Problem struct {
	Title  string         `json:"title" doc:"what the status says, in words"`
	Status int            `json:"status" doc:"the response's status"`
	Detail string         `json:"detail,omitempty" doc:"what is wrong, for people"`
	Errors []FieldProblem `json:"errors,omitempty" doc:"each thing that is wrong with what was sent"`
	// Owner lets a command that names no owner go on with the client's.
	Owner string `json:"owner,omitempty" doc:"of a request about another owner's set: whose set the client may write"`
}

// FieldProblem is what is wrong with one field of a request. It does not repeat the sent value,
// which may be secret.
type FieldProblem struct {
	Field  string `json:"field,omitempty" doc:"path of the field, as services[1].backends[0].weight, query.service or path.owner"`
	Line   int    `json:"line,omitempty" doc:"of the YAML text that was sent"`
	Detail string `json:"detail" doc:"what is wrong with it, and what would be right"`
}

// NewProblem returns a problem with a detail of its own.
func NewProblem(status int, detail string, fields ...FieldProblem) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Detail: detail, Errors: fields}
}

// Error returns the detail, or the title where there is none.
func (p *Problem) Error() string {
	if p.Detail != "" {
		return p.Detail
	}
	return p.Title
}

// GetStatus returns the status. As ContentType it is for the library.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns that of problems.
func (p *Problem) ContentType(string) string { return problemType }

func init() {
	huma.DefaultArrayNullable = false // lists are never null: see orEmpty
	huma.NewError = newError
}

// newError words what the library finds wrong with a request.
func newError(status int, detail string, errs ...error) huma.StatusError {
	p := NewProblem(status, detail)
	for _, err := range errs {
		if own := (*Problem)(nil); errors.As(err, &own) {
			return own
		}
		field := FieldProblem{Detail: err.Error()}
		if known := (*huma.ErrorDetail)(nil); errors.As(err, &known) {
			field = FieldProblem{Field: model.Shown(strings.TrimPrefix(known.Location, "body.")), Detail: known.Message}
			if len(field.Detail) > mostDetail { // it repeats a long value
				field.Detail = model.Shown(field.Detail)
			}
		}
		p.Errors = append(p.Errors, field)
	}
	if len(p.Errors) > 0 && detail == libraryDetail {
		p.Detail = inWords(p.Errors)
	}
	return p
}

// mostDetail bounds what the library says about a field, in bytes.
const mostDetail = 1000

// libraryDetail is all that the library says about a request with wrong fields.
const libraryDetail = "validation failed"

// inWords says what is wrong with fields, for people who read only the detail.
func inWords(fields []FieldProblem) string {
	text := fields[0].Detail
	if fields[0].Field != "" {
		text = fields[0].Field + ": " + text
	}
	if more := len(fields) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}
