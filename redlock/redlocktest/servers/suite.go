package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
)

// packages are those whose tests talk to masters.
var packages = []string{"conn", "mux", "redlock", "redlock/cmd/redlock", "redlock/redlocktest"}

// core are the tests of -brief, by regular expressions for their names: those that
// depend most on the server. They are short: the scenarios are those of the plain lock.
var core = []string{
	// The handshake.
	"TestServerSaysWhoItIs", "TestCredentials", "TestTLS", "TestUnixSockets", "TestTrackedKeysAreTold",
	"TestServersThatCanBeNoMasterAreRefused", "TestServersWithoutHELLOAreSpokenToInRESP2", "TestSmallestACL",
	"TestTheErrorNamesTheRightThatIsMissing", "TestFollowTellsOfEverySwitchOfItsGroup",
	// Credentials that end.
	"TestCredentialsOfAConnectionAreRenewed", "TestCredentialsAreRenewed.*", "TestEveryReplyIsItsOwn.*",
	// The lock.
	"TestScenarios", "TestRule[0-9].*", "TestCommandsOnTheWire", "TestForeignLocksAreRespected",
	"TestLockIsHandedOverByItsToken", "TestHoldersAreAskedOnEveryMaster",
	"TestReleaseThatAScriptHasRefusedForAMomentIsRepeated", "TestFallbackIsSentOncePerMaster",
	"TestErrorsOfMastersHoldNoToken", "TestNativeCommands.*", "TestServersCanBeMixed", "TestScriptsRunOnDragonfly",
	"TestDocumentedACLIsEnough", "TestLockNeedsNoOptionalCommand",
	// The other kinds of locks.
	"TestScriptsOf.*", "TestSeveralKeysAreSetWithMSETEX", "TestMastersNotifyOfAChangeOfAnyKey",
	"TestReadersTogetherOneWriterAlone", "TestAWritersIntentKeepsNewReadersOut",
	"TestServersThatAreTooOldForReaders", "TestAsManyHoldersAsPermits", "TestAnotherNumberOfPermitsIsRefused",
	// The fence.
	"TestCountersThatDifferTakeASecondRound", "TestALockThatIsHandedOverKeepsItsFence",
	// Waiting.
	"TestWaiterIsNotifiedByTheMasters",
	"TestEnterScript", "TestProcessesQueueForEveryKindOfLock", "TestDocumentedACLIsEnoughForTheQueue",
	// Masters that fail.
	"TestHungMasterDelaysNobodyIsResetAndComesBack", "TestThawedMasterIsToldOfAReleaseHoweverLateItIs",
	"TestWhoHasForgottenALockDoesNotGiveIt", "TestDurableMasterVotesAtOnceAfterARestart",
	"TestReplicationIDTellsOfAReplicaInBetween", "TestMasterThatWasAReplicaForAMomentDoesNotVote",
	"TestMasterThatHasGotAReplicaVotes", "TestDemotedMasterIsRefusedWithARemedy",
	"TestReadOnlyMasterOfAGroupIsLeft", "TestLockThatNeedsAReplacedMasterIsLostAtOnce",
	// Masters that are clusters.
	"TestMasterOfASlotIsFound", "TestEachKindWorksOnACluster",
	// Their memory.
	"TestFullMastersExtendAndRelease",
	// The command.
	"TestDoctorFinds.*", "TestStatusTellsHolderAndTime", "TestCommandsNameAKeyThatIsNoLock",
	"TestOnlyOneRunsAtATime", "TestALostLockEndsTheCommand",
	// The masters themselves.
	"TestServerIsTheOneThatTheEnvironmentNames", "TestGroupsStartOnEveryVersion", "TestKeysExpireInRealTime",
	"TestPausedMasterIsSilentUntilResumed",
}

// A result is what one server made of the tests.
type result struct {
	server          server
	passed, skipped int
	failed          []string // "redlock TestName"
	took            time.Duration
}

// A binary is the compiled tests of one package.
type binary struct{ pkg, path, dir string }

// testAll runs the tests of all packages against each server.
func testAll(ctx context.Context, all []server, brief bool) ([]result, error) {
	c, err := cacheDir()
	if err != nil {
		return nil, err
	}
	tmp, err := processes.NewGroup("redburst-servers-") // it goes with this process
	if err != nil {
		return nil, err
	}
	defer tmp.Close()
	binaries, err := compile(ctx, tmp.Dir)
	if err != nil {
		return nil, err
	}
	// What the tests of -brief do is wait, mostly: so the servers have them at the same time.
	atOnce := 1
	if brief {
		atOnce = len(all)
	}
	results, errs := make([]result, len(all)), make([]error, len(all))
	turns := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i, s := range all {
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			results[i], errs[i] = testOne(ctx, s, binaries, brief, filepath.Join(string(c), "logs", s.kind+"-"+s.version))
		})
	}
	running.Wait()
	return results, errors.Join(errs...)
}

// testOne runs the tests of all packages against a server.
func testOne(ctx context.Context, s server, binaries []binary, brief bool, logs string) (result, error) {
	r := result{server: s}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return r, err
	}
	for _, b := range binaries {
		fmt.Fprintf(os.Stderr, "servers: %s against %s\n", b.pkg, s)
		if err := r.add(ctx, b, brief, logs); err != nil {
			return r, err
		}
	}
	for _, failure := range r.failed {
		fmt.Fprintf(os.Stderr, "servers: FAILED against %s: %s\n", s, failure)
	}
	if len(r.failed) > 0 {
		fmt.Fprintf(os.Stderr, "servers: what the tests said is in %s\n", logs)
	}
	return r, nil
}

// compile compiles the tests of each package once, for all servers.
func compile(ctx context.Context, into string) (all []binary, err error) {
	root, err := output(ctx, nil, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, err
	}
	root = strings.TrimSpace(root)
	for _, pkg := range packages {
		b := binary{pkg, filepath.Join(into, strings.ReplaceAll(pkg, "/", "-")+".test"), filepath.Join(root, filepath.FromSlash(pkg))}
		cmd := command(ctx, nil, "go", "test", "-c", "-o", b.path, ".")
		cmd.Dir = b.dir
		if _, err := say(cmd); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

// verdict is the line that ends a test that is not part of another.
var verdict = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+)`)

// add runs the tests of a package and adds how they went.
func (r *result) add(ctx context.Context, b binary, brief bool, logs string) error {
	args := []string{"-test.v", "-test.timeout=20m"}
	if brief {
		args = append(args, "-test.short", "-test.run=^("+strings.Join(core, "|")+")$")
	}
	cmd := command(ctx, []string{"CI=true", "REDLOCKTEST_SERVER=" + r.server.path}, b.path, args...)
	cmd.Dir = b.dir
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	begun := time.Now()
	err := cmd.Run()
	r.took += time.Since(begun)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := os.WriteFile(filepath.Join(logs, path.Base(b.path)+".log"), log.Bytes(), 0o644); err != nil {
		return err
	}
	before := len(r.failed)
	for _, m := range verdict.FindAllStringSubmatch(log.String(), -1) {
		switch m[1] {
		case "PASS":
			r.passed++
		case "SKIP":
			r.skipped++
		case "FAIL":
			r.failed = append(r.failed, b.pkg+" "+m[2])
		}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	if err != nil && len(r.failed) == before { // a panic, or the timeout
		r.failed = append(r.failed, fmt.Sprintf("%s: %v", b.pkg, err))
	}
	return nil
}

// matrix prints the results as a table of Markdown.
func matrix(w io.Writer, results []result) {
	t := tabwriter.NewWriter(w, 0, 0, 0, ' ', 0)
	fmt.Fprintln(t, "| server\t | version\t | passed\t | failed\t | skipped\t | time\t |")
	fmt.Fprintln(t, "| ---\t | ---\t | ---\t | ---\t | ---\t | ---\t |")
	for _, r := range results {
		fmt.Fprintf(t, "| %s\t | %s\t | %d\t | %d\t | %d\t | %s\t |\n",
			r.server.kind, r.server.version, r.passed, len(r.failed), r.skipped, r.took.Round(time.Second))
	}
	t.Flush()
}
