{{- /* Comments are wrapped in Go; only an empty line begins a paragraph. */ -}}
{{- define "joined" }}{{ regexReplaceAll "([^\\n])\\n([^\\n])" . "${1} ${2}" | replace "<" "&lt;" }}{{ end -}}

{{- define "cell" }}{{ regexReplaceAll "([^\\n])\\n([^\\n])" . "${1} ${2}" | replace "<" "&lt;" | markdownRenderFieldDoc | trimSuffix "<br />" | trim }}{{ end -}}

{{- /* Large bounds come as 2.592e+06. */ -}}
{{- define "validation" -}}
{{- if regexMatch "^M(in|ax)imum: .*e" . }}{{ splitList ": " . | first }}: {{ splitList ": " . | last | float64 | printf "%.0f" }}
{{- else }}{{ . | replace "Required: {}" "required" | replace "|" "\\|" }}{{ end -}}
{{- end -}}

{{- define "type" -}}
{{- if markdownShouldRenderType . }}
## {{ .Name }}

{{ template "joined" .Doc }}
{{ if .IsAlias }}
Underlying type: {{ markdownRenderTypeLink .UnderlyingType }}.
{{ end -}}
{{ if and .Validation (not .Members) }}
Validation: {{ range $i, $rule := .Validation }}{{ if $i }}; {{ end }}{{ template "validation" $rule }}{{ end }}.
{{ end -}}
{{ if .References }}
Appears in {{ range $i, $type := .SortedReferences }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $type }}{{ end }}.
{{ end -}}
{{ if .Members }}
| Field | Type | Description | Default | Validation |
|---|---|---|---|---|
{{ range .Members -}}
| `{{ .Name }}` | {{ markdownRenderType .Type }} | {{ template "cell" .Doc }} | {{ if .Default }}`{{ .Default }}`{{ end }} | {{ range $i, $rule := without .Validation "Optional: {}" "Schemaless: {}" "Type: object" }}{{ if $i }}<br />{{ end }}{{ template "validation" $rule }}{{ end }} |
{{ end -}}
{{ end -}}
{{ if .EnumValues }}
| Value | Description |
|---|---|
{{ range .EnumValues -}}
| `{{ .Name }}` | {{ template "cell" .Doc }} |
{{ end -}}
{{ end -}}
{{ end -}}
{{ end -}}
