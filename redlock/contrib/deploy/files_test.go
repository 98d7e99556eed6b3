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
	probeFile = "/etc/redlock/probe.password" // of containers
)

// everywhere are the addresses that a master in a container listens on: those of the container.
var everywhere = []string{"--bind", "*", "-::*"}

// minor is an image that does not become another major or minor version by itself.
var minor = regexp.MustCompile(`^redis:(\d+)\.\d+(\.\d+)?(-[a-z0-9.]+)?(@sha256:[0-9a-f]{64})?$`)

// after returns the argument behind a flag.
func after(t *testing.T, argv []string, flag string) string {
	i := slices.Index(argv, flag)
	require.GreaterOrEqual(t, i, 0, "%v has no %s", argv, flag)
	require.Less(t, i+1, len(argv))
	return argv[i+1]
}

// setting is the value of a line of redis.conf.
func setting(t *testing.T, name string) string {
	m := regexp.MustCompile(`(?m)^`+name+` (.*)$`).FindAllStringSubmatch(read(t, "redis.conf"), -1)
	require.Len(t, m, 1, name)
	return m[0][1]
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
	volumes, ports := map[string]bool{}, map[string]bool{}
	for name, s := range p.Services {
		require.Equal(t, []string{"redis-server", confFile}, []string(s.Command[:2]), name)
		require.Equal(t, everywhere, []string(s.Command[len(s.Command)-3:]), name)
		require.Regexp(t, minor, s.Image)
		require.GreaterOrEqual(t, minor.FindStringSubmatch(s.Image)[1], "7", "maxmemory-clients")
		require.Empty(t, s.Entrypoint)
		require.Len(t, s.Volumes, 1)
		require.Equal(t, "volume", s.Volumes[0].Type)
		require.Equal(t, after(t, s.Command, "--dir"), s.Volumes[0].Target)
		require.False(t, s.Volumes[0].ReadOnly)
		require.Contains(t, p.Volumes, s.Volumes[0].Source)
		volumes[s.Volumes[0].Source] = true
		require.Len(t, s.Ports, 1)
		require.Equal(t, setting(t, "port"), strconv.Itoa(int(s.Ports[0].Target)))
		require.Equal(t, "127.0.0.1", s.Ports[0].HostIP)
		ports[s.Ports[0].Published] = true

		require.Len(t, s.Configs, 1)
		require.Equal(t, confFile, s.Configs[0].Target)
		require.Equal(t, "redis.conf", filepath.Base(p.Configs[s.Configs[0].Source].File))
		require.FileExists(t, p.Configs[s.Configs[0].Source].File)
		require.Len(t, s.Secrets, 2)
		for i, target := range []string{usersFile, probeFile} {
			require.Equal(t, target, s.Secrets[i].Target)
			name := filepath.Base(p.Secrets[s.Secrets[i].Source].File)
			require.Equal(t, filepath.Base(target), name)
			require.FileExists(t, filepath.Join(withPasswords(t), name))
			require.Regexp(t, `(?m)^chmod a\+r .*\b`+regexp.QuoteMeta(name), block(t, "docker compose"), "another user reads it")
		}
		require.Equal(t, "unless-stopped", s.Restart)
		require.Equal(t, append(types.HealthCheckTest{"CMD"}, probe(t)...), s.HealthCheck.Test)
		require.GreaterOrEqual(t, int64(s.MemLimit), 2*maxmemory(t))
	}
	require.Len(t, volumes, 3, "each has its own")
	require.Len(t, ports, 3)
	require.Equal(t, usersFile, setting(t, "aclfile"))

	for _, image := range []string{"redis", "redis:8", "redis:latest", "redis:alpine", "valkey/valkey:8.1"} {
		require.NotRegexp(t, minor, image)
	}
	for _, fault := range []string{"    volumess: [\"redis-a:/data\"]", "    volumes: {redis-a: /data}", "    volumes: [\"redis-d:/data\"]"} {
		text := strings.Replace(read(t, "compose.yaml"), "    volumes: [\"redis-a:/data\"]", fault, 1)
		_, err := parseCompose(t, text)
		require.Error(t, err, fault)
	}
}

// maxmemory is that of redis.conf, in bytes.
func maxmemory(t *testing.T) int64 { return bytesOf(t, "maxmemory") }

// bytesOf is a setting of redis.conf that is an amount of memory.
func bytesOf(t *testing.T, name string) int64 {
	mb, ok := strings.CutSuffix(setting(t, name), "mb")
	require.True(t, ok)
	n, err := strconv.ParseInt(mb, 10, 64)
	require.NoError(t, err)
	return n << 20
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
	require.Equal(t, []string{"v1 Service", "policy/v1 PodDisruptionBudget", "networking.k8s.io/v1 NetworkPolicy", "apps/v1 StatefulSet"}, []string{
		service.APIVersion + " " + service.Kind, budget.APIVersion + " " + budget.Kind, gate.APIVersion + " " + gate.Kind, set.APIVersion + " " + set.Kind})
	for _, name := range []string{"replica:", "Replicas:"} {
		require.Error(t, decode(strings.Replace(documents[3], "replicas:", name, 1), new(apps.StatefulSet)), name)
	}

	pod := set.Spec.Template
	require.NotEmpty(t, pod.Labels)
	for _, selector := range []map[string]string{service.Spec.Selector, budget.Spec.Selector.MatchLabels,
		gate.Spec.PodSelector.MatchLabels, set.Spec.Selector.MatchLabels} {
		require.Equal(t, pod.Labels, selector)
	}
	require.EqualValues(t, 3, *set.Spec.Replicas)
	require.Equal(t, core.ClusterIPNone, service.Spec.ClusterIP)
	require.Equal(t, service.Name, set.Spec.ServiceName)
	require.Equal(t, 1, budget.Spec.MaxUnavailable.IntValue())
	require.Nil(t, budget.Spec.MinAvailable)

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
	require.Len(t, pod.Spec.TopologySpreadConstraints, 1)
	require.Equal(t, core.LabelTopologyZone, pod.Spec.TopologySpreadConstraints[0].TopologyKey)
	require.Equal(t, pod.Labels, pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels)

	require.Len(t, pod.Spec.Containers, 1)
	c := pod.Spec.Containers[0]
	require.Equal(t, []string{"redis-server", confFile}, c.Command[:2])
	require.Equal(t, everywhere, c.Command[len(c.Command)-3:])
	require.Equal(t, c.Ports[0].Name, gate.Spec.Ingress[0].Ports[0].Port.String())
	require.Equal(t, compose(t).Services["redis-a"].Image, c.Image)
	require.Equal(t, setting(t, "port"), strconv.Itoa(int(c.Ports[0].ContainerPort)))
	require.Equal(t, c.Ports[0].Name, service.Spec.Ports[0].TargetPort.String())
	require.Equal(t, c.Ports[0].ContainerPort, service.Spec.Ports[0].Port)
	require.Len(t, set.Spec.VolumeClaimTemplates, 1)
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.Name] = m.MountPath
	}
	require.Equal(t, map[string]string{
		set.Spec.VolumeClaimTemplates[0].Name: after(t, c.Command, "--dir"),
		pod.Spec.Volumes[0].Name:              filepath.Dir(confFile),
	}, mounted)
	require.Equal(t, filepath.Dir(confFile), filepath.Dir(usersFile))
	require.NotEmpty(t, set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[core.ResourceStorage])
	require.Equal(t, apps.RetainPersistentVolumeClaimRetentionPolicyType, set.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted)
	sources := pod.Spec.Volumes[0].Projected.Sources
	readme := read(t, "README.md")
	require.Contains(t, readme, "kubectl create configmap "+sources[0].ConfigMap.Name+" --from-file=redis.conf\n")
	require.Contains(t, readme, "kubectl create secret generic "+sources[1].Secret.Name+" --from-file=users.acl --from-file=probe.password\n")

	for _, p := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		require.Equal(t, probe(t), p.Exec.Command)
	}
	require.GreaterOrEqual(t, c.Resources.Limits.Memory().Value(), 2*maxmemory(t))
	require.Equal(t, c.Resources.Limits.Memory(), c.Resources.Requests.Memory())
	require.False(t, c.Resources.Requests.Cpu().IsZero())
	require.True(t, *pod.Spec.SecurityContext.RunAsNonRoot)
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	require.Equal(t, []core.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
	require.False(t, *pod.Spec.AutomountServiceAccountToken)
}

// Who uses locks has less memory than this on a master: so, of all clients, none of those has most.
const mostOfAUser = 64 << 10

func TestLimits(t *testing.T) {
	t.Parallel()
	clients, err := strconv.ParseInt(setting(t, "maxclients"), 10, 64)
	require.NoError(t, err)
	require.LessOrEqual(t, clients*mostOfAUser, bytesOf(t, "maxmemory-clients")*1024/1000)
	require.LessOrEqual(t, bytesOf(t, "maxmemory-clients"), maxmemory(t)/4)
	files, err := strconv.ParseInt(unitOption(t, "redlock-master@.service", "Service", "LimitNOFILE"), 10, 64)
	require.NoError(t, err)
	require.Greater(t, files, clients+100, "or it lowers maxclients")
	require.Equal(t, "127.0.0.1", setting(t, "bind"), "unless whoever starts it says more")
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

func TestUnits(t *testing.T) {
	t.Parallel()
	for _, name := range units {
		require.NotEmpty(t, unitOption(t, name, "Unit", "Description"))
	}
	master := execStart(t, "redlock-master@.service", "6379", "%S", "/var/lib", "$LISTEN", "127.0.0.1")
	require.Equal(t, "/usr/bin/redis-server", master[0])
	require.Equal(t, confFile, master[1])
	require.Equal(t, "/var/lib/"+strings.ReplaceAll(unitOption(t, "redlock-master@.service", "Service", "StateDirectory"), "%i", "6379"),
		after(t, master, "--dir"))
	require.Equal(t, "6379", after(t, master, "--port"))
	overTLS := execStart(t, "tls.conf", "6379", "%S", "/var/lib", "$LISTEN", "127.0.0.1", "tls.conf --tls-port", "redis.conf --port")
	require.Equal(t, master, overTLS, "but for the port's kind")
	require.Equal(t, &unit.UnitOption{Section: "Service", Name: "ExecStart"}, options(t, "tls.conf")[0], "or it is a second command")
	require.Equal(t, "notify", unitOption(t, "redlock-master@.service", "Service", "Type"))
	require.Equal(t, "auto", setting(t, "supervised"), "or systemd is not notified")

	minutes, ok := strings.CutPrefix(unitOption(t, "redlock-job@.timer", "Timer", "OnCalendar"), "*:0/")
	require.True(t, ok)
	period, err := time.ParseDuration(minutes + "m")
	require.NoError(t, err)
	hold, err := time.ParseDuration(after(t, execStart(t, "redlock-job@.service", "report", credentials, ""), "--min-hold"))
	require.NoError(t, err)
	require.Less(t, hold, period)
	require.Greater(t, hold, period/2)
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

// The job has a user of its own and may do as little to the machine as the master, and its secret is in no environment.
func TestTheJobMayDoLittle(t *testing.T) {
	t.Parallel()
	const master, job = "redlock-master@.service", "redlock-job@.service"
	hardening := func(name string) map[string]string {
		all := map[string]string{}
		for _, o := range options(t, name) {
			for _, kind := range []string{"NoNew", "Capability", "Protect", "Private", "Restrict", "SystemCall", "UMask"} {
				if strings.HasPrefix(o.Name, kind) && o.Name != "RestartSec" {
					require.NotContains(t, all, o.Name)
					all[o.Name] = o.Value
				}
			}
		}
		return all
	}
	require.Greater(t, len(hardening(master)), 15)
	require.Equal(t, hardening(master), hardening(job))
	require.Equal(t, "yes", unitOption(t, job, "Service", "DynamicUser"))
	require.Equal(t, unitOption(t, job, "Service", "WorkingDirectory"), "%S/"+unitOption(t, job, "Service", "StateDirectory"))

	name, file, ok := strings.Cut(unitOption(t, job, "Service", "LoadCredential"), ":")
	require.True(t, ok)
	require.Contains(t, block(t, "redlock-job@"), "install -D -m 600 locker.password "+file+"\n")
	require.Equal(t, "/secrets/"+name, after(t, execStart(t, job, "report", credentials, "/secrets"), "--password-file"))
}

func TestSystemdKnowsTheUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here; TestUnits has parsed the units")
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
	write("tls.conf", "[Service]\nExecStarts=\n")
	out, _ = verify()
	require.Contains(t, out, "ExecStarts", "it reads the parts")
	write("tls.conf", "")
	file, err := os.OpenFile(instances[0], os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString("[Service]\nRestartSecs=1\n")
	require.NoError(t, err)
	require.NoError(t, file.Close())
	out, _ = verify()
	require.Contains(t, out, filepath.Base(instances[0]), "it sees what is wrong")
	require.Contains(t, out, "RestartSecs")
}

func TestTheTimersCommandRunsOncePerPeriod(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	d.age(t)
	dir := t.TempDir()
	job := filepath.Join(dir, "report")
	require.NoError(t, os.WriteFile(job, []byte("#!/bin/sh\necho \"$REDLOCK_KEY\" >>"+dir+"/ran\n"), 0o700))
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

// The rights are those that package conn names, but for the commands of newer servers and of clusters.
func TestTheUserHasTheRightsThatLocksNeed(t *testing.T) {
	t.Parallel()
	doc := read(t, filepath.Join("..", "..", "..", "conn", "doc.go"))
	_, doc, _ = strings.Cut(doc, "ACL SETUSER locker")
	doc, _, ok := strings.Cut(doc, "A server refuses the whole ACL SETUSER")
	require.True(t, ok)
	needed := regexp.MustCompile(`[+~][^\s,]+`).FindAllString(doc, -1)
	require.Contains(t, needed, "+evalsha")
	_, locker, _ := strings.Cut(read(t, "users.acl"), "user locker ")
	for _, right := range needed {
		if slices.Contains([]string{"+delex", "+delifeq", "+msetex", "+select", "+cluster|slots", "+cluster|info"}, right) {
			require.NotContains(t, strings.Fields(locker), right)
		} else {
			require.Contains(t, strings.Fields(locker), right)
		}
	}
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
