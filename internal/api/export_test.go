package api

import "net/http"

// KeptEvents returns the events that are kept.
func KeptEvents(e *Events) []Event {
	list, _ := e.after(0)
	return list
}

// AnswerAs answers a request of a caller.
func (s *Server) AnswerAs(c Caller, w http.ResponseWriter, r *http.Request) {
	s.route(w, r.WithContext(WithCaller(r.Context(), c)))
}
