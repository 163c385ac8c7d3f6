package v1alpha1

// Health says how backends are probed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.http) || self.kind in ['http', 'https']",message="is for the kinds http and https",fieldPath=".http"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.kind in ['https', 'tls', 'grpc', 'smtp']",message="is for the kinds https, tls, grpc and smtp",fieldPath=".tls"
// +kubebuilder:validation:XValidation:rule="!has(self.smtp) || self.kind == 'smtp'",message="is for the kind smtp",fieldPath=".smtp"
// +kubebuilder:validation:XValidation:rule="!has(self.startDelay) || duration(self.startDelay) <= duration('1h')",message="is not from 0s to 1h",fieldPath=".startDelay"
// +kubebuilder:validation:XValidation:rule="!has(self.grpc) || self.kind == 'grpc'",message="is for the kind grpc",fieldPath=".grpc"
// +kubebuilder:validation:XValidation:rule="!has(self.udp) || self.kind == 'udp'",message="is for the kind udp",fieldPath=".udp"
// +kubebuilder:validation:XValidation:rule="has(self.dns) == (self.kind == 'dns')",message="is for the kind dns, which needs it",fieldPath=".dns"
// +kubebuilder:validation:XValidation:rule="self.kind != 'https' || has(self.http) && (has(self.http.host) || has(self.http.requests)) || has(self.tls) && (has(self.tls.name) || has(self.tls.skipVerify) && self.tls.skipVerify)",message="https needs http.host or tls.name: the name that the certificate has to be for; or tls.skipVerify",fieldPath=".kind"
// +kubebuilder:validation:XValidation:rule="self.kind != 'tls' && !(self.kind in ['grpc', 'smtp'] && has(self.tls)) || has(self.tls) && (has(self.tls.name) || has(self.tls.skipVerify) && self.tls.skipVerify)",message="needs tls.name: the name that the certificate has to be for; or tls.skipVerify",fieldPath=".kind"
// +kubebuilder:validation:XValidation:rule="!has(self.interval) || duration(self.interval) >= duration('10ms') && duration(self.interval) <= duration('1h')",message="is not from 10ms to 1h",fieldPath=".interval"
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) >= duration('1ms') && duration(self.timeout) <= duration('1m')",message="is not from 1ms to 1m",fieldPath=".timeout"
type Health struct {
	// kind is the kind of probes. none: there are no probes, and no node-health. At ports of SCTP tcp
	// and syn are sctp, and at those of TCP sctp is tcp.
	// +required
	// +kubebuilder:validation:Enum=none;tcp;syn;http;https;tls;grpc;udp;dns;icmp;sctp;smtp
	Kind string `json:"kind"`

	// port is the probed port; none: the one that the backend serves.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// to says what is probed: vip is the service's address, reached as clients' packets reach it,
	// where that is possible; address is the backend's own.
	// +optional
	// +kubebuilder:validation:Enum=vip;address
	To string `json:"to,omitempty"`

	// interval is the time from one probe of a backend to the next: 10ms to 1h.
	// +optional
	Interval *Duration `json:"interval,omitempty"`

	// timeout is the timeout of one probe: 1ms to 1m.
	// +optional
	Timeout *Duration `json:"timeout,omitempty"`

	// startDelay is how long after a backend is added its first probe is sent: up to 1h.
	// +optional
	StartDelay *Duration `json:"startDelay,omitempty"`

	// rise is how many successes in a row make a backend healthy.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Rise int32 `json:"rise,omitempty"`

	// fall is how many failures in a row make a backend unhealthy.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Fall int32 `json:"fall,omitempty"`

	// panic is a percentage of the backends: while fewer are healthy, all are used. 0: never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Panic *int32 `json:"panic,omitempty"`

	// http has the request or requests, with the kinds http and https; none: GET /.
	// +optional
	HTTP *HealthHTTP `json:"http,omitempty"`

	// tls says which certificate is good, with the kinds https and tls; with grpc and smtp it makes
	// probes use TLS.
	// +optional
	TLS *HealthTLS `json:"tls,omitempty"`

	// grpc says what is asked with the kind grpc; none: the health of the whole server.
	// +optional
	GRPC *HealthGRPC `json:"grpc,omitempty"`

	// udp is the datagram with the kind udp; none: an empty one, which need not be answered.
	// +optional
	UDP *HealthUDP `json:"udp,omitempty"`

	// dns is the question with the kind dns.
	// +optional
	DNS *HealthDNS `json:"dns,omitempty"`

	// smtp says how mail servers are asked, with the kind smtp.
	// +optional
	SMTP *HealthSMTP `json:"smtp,omitempty"`
}

// HealthHTTP has a request, or several, and which answers are good.
//
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.path) && !has(self.body) && !has(self.bodyRegexp) && !has(self.digest)",message="with requests, path, body, bodyRegexp and digest are given in each of them",fieldPath=".requests"
type HealthHTTP struct {
	HealthRequest `json:",inline"`

	// version is that of HTTP; none: 1.1. 2 is agreed on in the TLS handshake with the kind https, and
	// sent without asking with http.
	// +optional
	// +kubebuilder:validation:Enum="1.0";"1.1";"2"
	Version string `json:"version,omitempty"`

	// requests are several, all of which have to be answered well. Those without a method, host or
	// status have that beside requests.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Requests []HealthRequest `json:"requests,omitempty"`
}

// HealthRequest has a request, and which answers are good.
//
// +kubebuilder:validation:XValidation:rule="!has(self.body) || !has(self.method) || self.method != 'HEAD'",message="cannot be looked for: an answer to HEAD has no body",fieldPath=".body"
type HealthRequest struct {
	// method is the method of the request; none: GET.
	// +optional
	// +kubebuilder:validation:Enum=GET;HEAD;OPTIONS;POST;PUT;PATCH;DELETE;TRACE;CONNECT
	Method string `json:"method,omitempty"`

	// path is the requested path; none: /.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	Path string `json:"path,omitempty"`

	// host is what the request names; none: the backend's address and port.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[!"$-.0->A-~]+$`
	Host string `json:"host,omitempty"`

	// status are the codes (200) and ranges of codes (200-399) of good answers.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MaxLength=7
	// +kubebuilder:validation:items:Pattern=`^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$`
	Status []string `json:"status,omitempty"`

	// body is a text that a good answer has in the first 64 KiB of its body.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Body string `json:"body,omitempty"`

	// bodyRegexp is a regular expression (RE2) that matches in these 64 KiB.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	BodyRegexp string `json:"bodyRegexp,omitempty"`

	// digest is that of a good answer's whole body, of at most 1 MiB: sha256 or md5, a colon, and
	// hexadecimal digits.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^(md5:[0-9a-fA-F]{32}|sha256:[0-9a-fA-F]{64})$`
	Digest string `json:"digest,omitempty"`
}

// HealthSMTP says how mail servers are asked.
type HealthSMTP struct {
	// helo is the name of the client; none: its address.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[!-~]+$`
	Helo string `json:"helo,omitempty"`

	// startTLS is true if TLS begins by STARTTLS, and not with the connection. It needs tls.
	// +optional
	StartTLS bool `json:"startTLS,omitempty"`
}

// HealthTLS says which certificate of a server is good.
//
// +kubebuilder:validation:XValidation:rule="!has(self.ca) || !has(self.skipVerify) || !self.skipVerify",message="is not looked at with skipVerify",fieldPath=".ca"
type HealthTLS struct {
	// name is the requested name (SNI), for which the certificate has to be; none: that of
	// http.host.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-.:_0-9A-Za-z]+$`
	Name string `json:"name,omitempty"`

	// ca is PEM text of the certificates that may have signed the server's; none: those that the
	// directors' hosts trust.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	CA string `json:"ca,omitempty"`

	// skipVerify is true if any certificate is good.
	// +optional
	SkipVerify bool `json:"skipVerify,omitempty"`
}

// HealthGRPC says what a server's grpc.health.v1.Health is asked.
type HealthGRPC struct {
	// service is the service that it is asked about; none: the whole server.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Service string `json:"service,omitempty"`
}

// HealthUDP has a datagram and its answer.
type HealthUDP struct {
	// send is the datagram, as text or as hex:00ff, at most 1024 bytes; none: an empty one.
	// +optional
	// +kubebuilder:validation:MaxLength=2052
	Send string `json:"send,omitempty"`

	// expect is what a good answer contains, written likewise; none: no answer is needed.
	// +optional
	// +kubebuilder:validation:MaxLength=2052
	Expect string `json:"expect,omitempty"`
}

// HealthDNS has a question, and which answers are good.
type HealthDNS struct {
	// name is the requested name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// type is the type of the records; none: A.
	// +optional
	// +kubebuilder:validation:Enum=A;AAAA;NS;CNAME;SOA;PTR;MX;TXT;SRV
	Type string `json:"type,omitempty"`

	// rcodes are the response codes of good answers; none: noerror.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:Enum=noerror;nxdomain;refused;servfail;formerr;notimp
	RCodes []string `json:"rcodes,omitempty"`
}
