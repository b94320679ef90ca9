// Reads a JSON list of objects from stdin and prints what deployment tools compute for each: the status by kstatus,
// the library of Helm and Flux, and the health by a Lua script for Argo CD.
//
//	health [-lua FILE] < objects.json
//
// kstatus is the fork that Helm 4 and Flux link (github.com/fluxcd/cli-utils), in the version that Helm requires.
// The interpreter of Lua is the one that Argo CD links.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The time that Argo CD gives a script.
const luaTimeout = time.Second

// An answer about one object.
type answer struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type result struct {
	Kstatus answer  `json:"kstatus"`
	Argo    *answer `json:"argo,omitempty"`
}

func main() {
	log.SetFlags(0)
	file := flag.String("lua", "", "a health check of Argo CD")
	flag.Parse()
	script := ""
	if *file != "" {
		text, err := os.ReadFile(*file)
		must(err)
		script = string(text)
	}
	input, err := io.ReadAll(os.Stdin)
	must(err)
	var list []json.RawMessage
	must(json.Unmarshal(input, &list))
	results := make([]result, 0, len(list))
	for _, text := range list {
		// Unlike encoding/json, this reads whole numbers as int64, as kstatus and Argo CD get them from their clients.
		object := &unstructured.Unstructured{}
		must(object.UnmarshalJSON(text))
		computed, err := status.Compute(object)
		must(err)
		one := result{Kstatus: answer{computed.Status.String(), computed.Message}}
		if script != "" {
			health, err := run(script, object)
			must(err)
			one.Argo = &health
		}
		results = append(results, one)
	}
	must(json.NewEncoder(os.Stdout).Encode(results))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// run opens the libraries that Argo CD opens for a script in argocd-cm (util/lua/lua.go): package, base and table.
// Argo CD also has a restricted library os. It is missing here, so a script that needs it fails.
func run(script string, object *unstructured.Unstructured) (answer, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage},
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
	} {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return answer{}, fmt.Errorf("cannot open the library %s: %w", library.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), luaTimeout)
	defer cancel()
	state.SetContext(ctx)
	global, err := value(state, object.Object)
	if err != nil {
		return answer{}, err
	}
	state.SetGlobal("obj", global)
	if err := state.DoString(script); err != nil {
		return answer{}, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return answer{}, fmt.Errorf("the script must return a table, got %s", state.Get(-1).Type())
	}
	health := answer{}
	for name, target := range map[string]*string{"status": &health.Status, "message": &health.Message} {
		switch field := table.RawGetString(name).(type) {
		case lua.LString:
			*target = string(field)
		case *lua.LNilType:
		default:
			return answer{}, fmt.Errorf("%s must be a string, got %s", name, field.Type())
		}
	}
	return health, nil
}

// value is the Lua value of a part of an object.
func value(state *lua.LState, part any) (lua.LValue, error) {
	switch part := part.(type) {
	case nil:
		return lua.LNil, nil
	case bool:
		return lua.LBool(part), nil
	case string:
		return lua.LString(part), nil
	case int64:
		return lua.LNumber(part), nil
	case float64:
		return lua.LNumber(part), nil
	case []any:
		table := state.CreateTable(len(part), 0)
		for _, item := range part {
			item, err := value(state, item)
			if err != nil {
				return nil, err
			}
			table.Append(item)
		}
		return table, nil
	case map[string]any:
		table := state.CreateTable(0, len(part))
		for name, item := range part {
			item, err := value(state, item)
			if err != nil {
				return nil, err
			}
			table.RawSetString(name, item)
		}
		return table, nil
	}
	return nil, fmt.Errorf("an object has a value of the type %T", part)
}
