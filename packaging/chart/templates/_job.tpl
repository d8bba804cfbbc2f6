{{/* The spec of a job that changes the members: (list $ join|drain). */}}
{{- define "kvorum.job" -}}
{{- $ := index . 0 -}}
{{- $tls := ne $.Values.tls.mode "none" -}}
backoffLimit: 3
activeDeadlineSeconds: {{ int $.Values.jobs.deadline }}
template:
  metadata:
    labels:
      app.kubernetes.io/name: kvorum-job
      app.kubernetes.io/instance: {{ $.Release.Name }}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    enableServiceLinks: false
    securityContext:
      {{- include "kvorum.user" $ | nindent 6 }}
    {{- with $.Values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    initContainers:
      - name: shell
        image: {{ $.Values.jobs.shellImage }}
        imagePullPolicy: {{ $.Values.imagePullPolicy }}
        command: [/bin/sh, -c, cp /bin/busybox /shell/ && /shell/busybox --install -s /shell]
        resources: &resources
          {{- toYaml $.Values.jobs.resources | nindent 10 }}
        securityContext: &confined
          {{- include "kvorum.confined" $ | nindent 10 }}
        volumeMounts:
          - name: shell
            mountPath: /shell
    containers:
      - name: members
        image: {{ $.Values.image }}
        imagePullPolicy: {{ $.Values.imagePullPolicy }}
        command: [/shell/sh, -c]
        args:
          - |
            {{- $.Files.Get "files/members.sh" | trim | nindent 12 }}
          - members
          - {{ index . 1 }}
        env:
          - name: PATH
            value: /shell:/usr/local/bin:/usr/bin
          - name: NAME
            value: {{ include "kvorum.name" $ }}
          - name: NODES
            value: {{ int $.Values.nodes | quote }}
          - name: FOUNDERS
            value: {{ int $.Values.founders | quote }}
          - name: DOMAIN
            value: {{ include "kvorum.domain" $ }}
          - name: SCHEME
            value: {{ include "kvorum.scheme" $ }}
          - name: KVORUM_TOKEN
            valueFrom:
              secretKeyRef:
                name: {{ $.Values.secret.name }}
                key: admin-token
          {{- if $tls }}
          - name: KVORUM_CA_FILE
            value: /etc/kvorum/tls/ca.crt
          {{- end }}
        resources: *resources
        securityContext: *confined
        volumeMounts:
          - name: shell
            mountPath: /shell
            readOnly: true
          {{- if $tls }}
          - name: tls
            mountPath: /etc/kvorum/tls
            readOnly: true
          {{- end }}
    volumes:
      - name: shell
        emptyDir: {}
      {{- if $tls }}
      - name: tls
        secret:
          secretName: {{ include "kvorum.tlsSecret" $ }}
          defaultMode: 0440
          items:
            - key: ca.crt
              path: ca.crt
      {{- end }}
    {{- with $.Values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $.Values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}
