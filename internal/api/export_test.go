package api

import "net/http"

// AnswerAs answers a request of a caller.
func (s *Server) AnswerAs(c Caller, w http.ResponseWriter, r *http.Request) {
	s.route(w, r.WithContext(WithCaller(r.Context(), c)))
}
