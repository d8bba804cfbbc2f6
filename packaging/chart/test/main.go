// Decodes the output of `helm template`, each object strictly into the type of its API: an unknown or
// duplicate field is an error.
//
//	helm template … | go run . [-json]
//
// -json prints the objects as one JSON list, which packaging/test-chart.py reads.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	documents "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Constructors of the types that the chart may use, by API version and kind.
var kinds = map[string]func() any{
	"apps/v1/StatefulSet":                     func() any { return new(apps.StatefulSet) },
	"batch/v1/Job":                            func() any { return new(batch.Job) },
	"cert-manager.io/v1/Certificate":          func() any { return new(certmanager.Certificate) },
	"monitoring.coreos.com/v1/ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"policy/v1/PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"v1/ConfigMap":                            func() any { return new(core.ConfigMap) },
	"v1/PersistentVolumeClaim":                func() any { return new(core.PersistentVolumeClaim) },
	"v1/Service":                              func() any { return new(core.Service) },
}

// decode returns the object of one document; nil for an empty document.
func decode(document []byte) (any, error) {
	var what meta.TypeMeta
	if err := yaml.Unmarshal(document, &what); err != nil {
		return nil, err
	}
	if what.Kind == "" {
		var rest map[string]any
		if err := yaml.Unmarshal(document, &rest); err != nil || len(rest) > 0 {
			return nil, fmt.Errorf("a document without a kind: %.60q", document)
		}
		return nil, nil
	}
	kind := what.APIVersion + "/" + what.Kind
	made, known := kinds[kind]
	if !known {
		return nil, fmt.Errorf("%s: the chart is not known to use this kind", kind)
	}
	object := made()
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return object, nil
}

func run(in io.Reader, asJSON bool) error {
	reader := documents.NewYAMLReader(bufio.NewReader(in))
	objects := []any{}
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		object, err := decode(document)
		if err != nil {
			return err
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
	if len(objects) == 0 {
		return errors.New("there is no object in the input")
	}
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(objects)
	}
	fmt.Printf("%d objects are what their types allow\n", len(objects))
	return nil
}

func main() {
	asJSON := len(os.Args) > 1 && os.Args[1] == "-json"
	if err := run(os.Stdin, asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "packaging/chart/test:", err)
		os.Exit(1)
	}
}
