package deploy_test

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/coreos/go-systemd/v22/unit"
	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// These are where every deployment puts the files.
const (
	confFile  = "/etc/redlock/redis.conf"
	usersFile = "/etc/redlock/users.acl"
)

// everywhere are the addresses that a master in a container listens on: those of the container.
var everywhere = []string{"--bind", "*", "-::*"}

// after returns the argument behind a flag.
func after(t *testing.T, argv []string, flag string) string {
	i := slices.Index(argv, flag)
	require.GreaterOrEqual(t, i, 0, "%v has no %s", argv, flag)
	require.Less(t, i+1, len(argv))
	return argv[i+1]
}

// parseCompose parses a file with Compose's own parser and schema.
func parseCompose(t *testing.T, text string) (*types.Project, error) {
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  here,
		ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: []byte(text)}},
	})
}

func compose(t *testing.T) *types.Project {
	p, err := parseCompose(t, read(t, "compose.yaml"))
	require.NoError(t, err)
	return p
}

// probe is the command that tells whether a master is alive.
func probe(t *testing.T) []string {
	test := compose(t).Services["redis-a"].HealthCheck.Test
	require.Equal(t, "CMD", test[0])
	return test[1:]
}

func TestCompose(t *testing.T) {
	t.Parallel()
	p := compose(t)
	require.Len(t, p.Services, 3)
	volumes := map[string]bool{}
	for name, s := range p.Services {
		require.Equal(t, []string{"redis-server", confFile}, []string(s.Command[:2]), name)
		require.Equal(t, everywhere, []string(s.Command[len(s.Command)-3:]), name)
		require.Equal(t, after(t, s.Command, "--dir"), s.Volumes[0].Target, name)
		volumes[s.Volumes[0].Source] = true
		require.Equal(t, "127.0.0.1", s.Ports[0].HostIP, name)
		require.Equal(t, confFile, s.Configs[0].Target, name)
		require.Equal(t, usersFile, s.Secrets[0].Target, name)
		for _, secret := range s.Secrets {
			require.FileExists(t, filepath.Join(withPasswords(t), filepath.Base(p.Secrets[secret.Source].File)))
		}
		require.Equal(t, probe(t), []string(s.HealthCheck.Test[1:]), name)
	}
	require.Len(t, volumes, 3, "each has its own")
}

// decode decodes a manifest as the API server does: it refuses a field that it does not know.
func decode(document string, into any) error {
	text, err := yaml.YAMLToJSONStrict([]byte(document))
	if err != nil {
		return err
	}
	unknown, err := json.UnmarshalStrict(text, into)
	return errors.Join(append(unknown, err)...)
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	var (
		service core.Service
		budget  policy.PodDisruptionBudget
		gate    networking.NetworkPolicy
		set     apps.StatefulSet
	)
	documents := strings.Split(read(t, "kubernetes.yaml"), "\n---\n")
	require.Len(t, documents, 4)
	for i, into := range []any{&service, &budget, &gate, &set} {
		require.NoError(t, decode(documents[i], into))
	}
	pod := set.Spec.Template
	require.NotEmpty(t, pod.Labels)
	for _, selector := range []map[string]string{service.Spec.Selector, budget.Spec.Selector.MatchLabels,
		gate.Spec.PodSelector.MatchLabels, set.Spec.Selector.MatchLabels} {
		require.Equal(t, pod.Labels, selector)
	}
	// Only who has the label gets in, and the master goes nowhere.
	require.Equal(t, []networking.PolicyType{networking.PolicyTypeIngress, networking.PolicyTypeEgress}, gate.Spec.PolicyTypes)
	require.Empty(t, gate.Spec.Egress)
	require.Len(t, gate.Spec.Ingress, 1)
	require.Len(t, gate.Spec.Ingress[0].From, 1)
	from := gate.Spec.Ingress[0].From[0]
	require.Nil(t, from.NamespaceSelector)
	require.Nil(t, from.IPBlock)
	require.Equal(t, map[string]string{"redlock-client": "true"}, from.PodSelector.MatchLabels)
	require.Contains(t, strings.Join(strings.Fields(read(t, "README.md")), " "), "label `redlock-client: \"true\"`")
	require.Len(t, gate.Spec.Ingress[0].Ports, 1)
	require.Equal(t, core.ProtocolTCP, *gate.Spec.Ingress[0].Ports[0].Protocol)

	apart := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	require.Len(t, apart, 1)
	require.Equal(t, core.LabelHostname, apart[0].TopologyKey)
	require.Equal(t, pod.Labels, apart[0].LabelSelector.MatchLabels)
	require.Len(t, pod.Spec.Containers, 1)
	c := pod.Spec.Containers[0]
	require.Equal(t, []string{"redis-server", confFile}, c.Command[:2])
	require.Equal(t, everywhere, c.Command[len(c.Command)-3:])
	require.Equal(t, c.Ports[0].Name, gate.Spec.Ingress[0].Ports[0].Port.String())
	require.Equal(t, compose(t).Services["redis-a"].Image, c.Image)
	require.Equal(t, after(t, c.Command, "--dir"), c.VolumeMounts[0].MountPath)
	for _, p := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		require.Equal(t, probe(t), p.Exec.Command)
	}
}

var units = []string{"redlock-master@.service", "redlock-job@.service", "redlock-job@.timer"}

// options are those of a unit, or of a part of one.
func options(t *testing.T, name string) []*unit.UnitOption {
	all, err := unit.DeserializeOptions(bytes.NewReader([]byte(read(t, filepath.Join("systemd", name)))))
	require.NoError(t, err)
	return all
}

// unitOption returns the value of an option that a unit has once. Empty ones, which undo what was before, do not
// count.
func unitOption(t *testing.T, name, section, option string) string {
	var values []string
	for _, o := range options(t, name) {
		if o.Section == section && o.Name == option && o.Value != "" {
			values = append(values, o.Value)
		}
	}
	require.Len(t, values, 1, "%s: %s", name, option)
	return values[0]
}

// execStart returns the command of a service's instance, with some texts in place of others.
func execStart(t *testing.T, name, instance string, replace ...string) []string {
	texts := strings.NewReplacer(append([]string{"%i", instance}, replace...)...)
	line := texts.Replace(unitOption(t, name, "Service", "ExecStart"))
	require.NotContains(t, line, "%")
	require.NotContains(t, line, "$")
	return strings.Fields(line)
}

// credentials is where systemd puts them.
const credentials = "${CREDENTIALS_DIRECTORY}"

func TestAMasterIsThereForItsOwnMachineUntilToldOtherwise(t *testing.T) {
	t.Parallel()
	const master, network = "redlock-master@.service", "network.conf"
	require.Equal(t, "LISTEN=127.0.0.1", unitOption(t, master, "Service", "Environment"))
	require.Equal(t, "any", unitOption(t, master, "Service", "IPAddressDeny"))
	require.Equal(t, "localhost", unitOption(t, master, "Service", "IPAddressAllow"))

	listen, ok := strings.CutPrefix(strings.Trim(unitOption(t, network, "Service", "Environment"), `"`), "LISTEN=127.0.0.1 ")
	require.True(t, ok)
	admitted := netip.MustParsePrefix(unitOption(t, network, "Service", "IPAddressAllow"))
	require.True(t, admitted.Contains(netip.MustParseAddr(listen)))
	require.Equal(t, "192.0.2.0/24", admitted.String(), "addresses that nobody has")
}

func TestAMasterIsStartedAgainHoweverOftenItHasFailed(t *testing.T) {
	t.Parallel()
	const master = "redlock-master@.service"
	require.Equal(t, "always", unitOption(t, master, "Service", "Restart"))
	require.Equal(t, "0", unitOption(t, master, "Unit", "StartLimitIntervalSec"))
}

func TestAJobThatHangsIsStopped(t *testing.T) {
	t.Parallel()
	most, err := time.ParseDuration(unitOption(t, "redlock-job@.service", "Service", "TimeoutStartSec"))
	require.NoError(t, err)
	require.Positive(t, most, "a oneshot has none of its own")
}

func TestSystemdKnowsTheUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	dir := t.TempDir()
	var instances []string
	for _, name := range units {
		text := read(t, filepath.Join("systemd", name))
		text = regexp.MustCompile(`(?m)^ExecStart=\S+`).ReplaceAllString(text, "ExecStart=/bin/true") // which is installed
		path := filepath.Join(dir, strings.Replace(name, "@", "@6379", 1))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		instances = append(instances, path)
	}
	parts := instances[0] + ".d"
	require.NoError(t, os.Mkdir(parts, 0o700))
	write := func(name, text string) {
		text = regexp.MustCompile(`(?m)^ExecStart=/\S+`).ReplaceAllString(text, "ExecStart=/bin/true")
		require.NoError(t, os.WriteFile(filepath.Join(parts, name), []byte(text), 0o600))
	}
	for _, name := range []string{"network.conf", "tls.conf"} {
		write(name, read(t, filepath.Join("systemd", name)))
	}
	verify := func() (string, error) {
		out, err := exec.Command(analyze, append([]string{"verify", "--man=no"}, instances...)...).CombinedOutput()
		return string(out), err
	}
	out, err := verify()
	require.NoError(t, err, out)
	for _, i := range instances {
		require.NotContains(t, out, filepath.Base(i))
	}
	for _, service := range instances[:2] { // may do little to the machine
		out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=40", service).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	write("tls.conf", "[Service]\nExecStarts=\n")
	out, _ = verify()
	require.Contains(t, out, "ExecStarts", "it reads the parts")
}

func TestTheTimersCommandRunsOncePerPeriod(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	d.age(t)
	dir := t.TempDir()
	job := filepath.Join(dir, "report")
	require.NoError(t, processes.WriteProgram(job, []byte("#!/bin/sh\necho \"$REDLOCK_KEY\" >>"+dir+"/ran\n")))
	argv := execStart(t, "redlock-job@.service", "report", "/usr/local/bin/redlock", commandLine(t), "/usr/local/lib/redlock-jobs", dir,
		credentials+"/password", passwordFile(t, "locker"))
	out, status := d.redlockCommand(t, argv...)
	require.Zero(t, status, out)
	require.Empty(t, out)
	out, status = d.redlockCommand(t, argv...)
	require.Equal(t, unitOption(t, "redlock-job@.service", "Service", "SuccessExitStatus"), strconv.Itoa(status), out)
	require.Empty(t, out)
	require.Equal(t, "lock:job:report\n", read(t, filepath.Join(dir, "ran")))
	for _, port := range d.ports {
		require.NotRegexp(t, `config[^\n]*rejected_calls=[1-9]`, talk(port, login(t, "locker"), "INFO commandstats"), "its environment says what it would ask")
	}
}

func TestClientsGetWhatTheUnitSays(t *testing.T) {
	t.Parallel()
	require.Equal(t, "/etc/redlock/client.env", unitOption(t, "redlock-job@.service", "Service", "EnvironmentFile"))
	var names []string
	for _, line := range clientEnv(t) {
		name, value, ok := strings.Cut(line, "=")
		require.True(t, ok)
		require.NotEmpty(t, value)
		names = append(names, name)
	}
	require.Equal(t, []string{"REDLOCK_MASTERS", "REDLOCK_USERNAME", "REDLOCK_DURABLE"}, names, "no password, which the job would inherit")
}

// What the README tells to run is there: subcommands, flags, files.
func TestReadme(t *testing.T) {
	t.Parallel()
	dir, root, commands := withPasswords(t), t.TempDir(), 0
	for _, block := range blocks.FindAllStringSubmatch(read(t, "README.md"), -1) {
		if strings.Contains(block[1], "openssl") || strings.Contains(block[1], "locker.new") {
			continue // other tests run it
		}
		for line := range strings.Lines(block[1]) {
			words := strings.Fields(line)
			switch words[0] {
			case "redlock":
				help, err := exec.Command(commandLine(t), words[1], "--help").CombinedOutput()
				require.NoError(t, err, string(help))
				for _, word := range words[2:] {
					if strings.HasPrefix(word, "-") {
						require.Regexp(t, `(?m)^.*`+word+`\b`, string(help))
					}
				}
			case "install": // below another root, and by whoever runs the tests
				if strings.HasSuffix(words[len(words)-2], ".crt") || strings.HasSuffix(words[len(words)-2], ".key") {
					continue // TestTLS
				}
				shell(t, dir, strings.NewReplacer(" /etc/", " "+root+"/etc/", " -g redis", "").Replace(line))
			case "chmod":
				for _, file := range words[2:] {
					require.FileExists(t, filepath.Join(dir, file))
				}
			case "docker", "kubectl":
				for i, word := range words {
					if file, ok := strings.CutPrefix(word, "--from-file="); ok {
						require.FileExists(t, filepath.Join(dir, file))
					} else if word == "-f" && words[i+1] != "-" {
						require.FileExists(t, words[i+1])
					}
				}
			case "systemctl", "export", "GOBIN=/usr/local/bin", "REDISCLI_AUTH=$(cat":
				continue
			default:
				t.Errorf("nobody has tried %q", line)
			}
			commands++
		}
	}
	require.Equal(t, 21, commands)
	for _, file := range []string{confFile, usersFile, "/etc/redlock/client.env", "/etc/redlock/locker.password", "/etc/redlock/tls.conf"} {
		require.FileExists(t, root+file)
	}
	for _, name := range units {
		require.FileExists(t, root+"/etc/systemd/system/"+name)
	}
	for _, name := range []string{"network.conf", "tls.conf"} {
		require.FileExists(t, root+"/etc/systemd/system/redlock-master@.service.d/"+name)
	}
	private, err := os.Stat(root + "/etc/redlock/locker.password")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), private.Mode())
}
