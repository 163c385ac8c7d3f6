{{- define "weir.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/component: controller
{{ include "weir.release" . }}
{{- end }}

{{- define "weir.release" -}}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* The controller's file. */ -}}
{{- define "weir.file" -}}
class: {{ .Values.class | quote }}
without-class: {{ .Values.withoutClass }}
gateway-controller: {{ .Values.gatewayController | quote }}
owner: {{ .Values.owner | quote }}
mode: {{ .Values.mode }}
snat: {{ .Values.snat }}
backends: {{ .Values.backends }}
node-health: {{ .Values.nodeHealth }}
{{- with .Values.zone }}
zone: {{ . | quote }}
{{- end }}
{{- with .Values.mtu }}
mtu: {{ . }}
{{- end }}
lease:
  namespace: {{ .Release.Namespace | quote }}
  name: {{ include "weir.name" . | quote }}
  duration: {{ .Values.leaseDuration }}
{{- with .Values.directors }}
directors:
{{- end }}
{{- $secret := .Values.secret }}
{{- range .Values.directors }}
- server: {{ .server | quote }}
{{- range $key, $file := dict "ca" $secret.ca "token-file" $secret.token "cert" $secret.cert "key" $secret.key }}
{{- if $file }}
  {{ $key }}: {{ printf "/etc/weir/directors/%s" $file | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weir.director.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/component: director
{{ include "weir.release" . }}
{{- end }}

{{- /* The container of a director's sidecar, which needs no rights on its node but root's files. */ -}}
{{- define "weir.sidecar" -}}
image: {{ printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
- node
- --group={{ .group }}
- --owner={{ .root.Values.owner }}
- --file=/var/lib/weir/weir.yaml
- --state=/var/lib/weir/state
- --socket=/run/weir/director.sock
- --log-level={{ .root.Values.logLevel }}
- --log-format={{ .root.Values.logFormat }}
{{- with .more }}
- {{ . }}
{{- end }}
env:
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
- {name: state, mountPath: /var/lib/weir}
- {name: run, mountPath: /run/weir}
{{- end }}
