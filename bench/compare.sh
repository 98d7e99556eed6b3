#!/usr/bin/env bash
# Compares the benchmarks of the work tree with those of a revision, by
# benchstat. The test binaries of both take turns, so that noise of the machine
# hits both alike. `make bench-compare` calls it. These variables choose:
#
#	BASE       the revision (HEAD: what is not committed yet)
#	PKGS       the packages, by their directories
#	BENCH      the benchmarks of them, as go test -bench takes it
#	COUNT      how many turns each takes (8); benchstat wants at least 6
#	BENCHTIME  how long each benchmark runs in a turn (100ms)
set -euo pipefail
cd "$(dirname "$0")/.."

GO=${GO:-go}
BASE=${BASE:-HEAD}
PKGS=${PKGS:-resp conn mux redlock bench}
BENCH=${BENCH:-'Append|Next|Elems|RoundTrip|Dial|Pair|Overhead|Masters/(TryLock|Extend)|Acquire/lib=redburst$'}
COUNT=${COUNT:-8}
BENCHTIME=${BENCHTIME:-100ms}

rev=$(git rev-parse --verify --quiet "$BASE^{commit}") || { echo "BASE=$BASE is no revision" >&2; exit 1; }
benchstat=$("$GO" tool -modfile=.ci/tools.mod -n benchstat)
tmp=$(mktemp -d)
child=
clean() {
	trap - EXIT
	[ -z "$child" ] || kill "$child" 2>/dev/null || :
	git worktree remove --force "$tmp/base" 2>/dev/null || :
	rm -rf "$tmp"
	git worktree prune
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

git worktree add --quiet --detach "$tmp/base" "$rev"
declare -A root=([base]=$tmp/base [work]=$PWD)

# at runs a command in a directory, and waits in a way that a signal interrupts.
at() {
	(cd "$1" && shift && exec "$@") &
	child=$!
	local status=0
	wait "$child" || status=$?
	child=
	return $status
}

binary() { echo "$tmp/$1-${2//\//-}.test"; }

for side in base work; do
	: >"$tmp/$side.txt"
	for pkg in $PKGS; do
		[ -d "${root[$side]}/$pkg" ] || { echo "$side has no $pkg" >&2; continue; }
		echo "build: $side $pkg" >&2
		at "${root[$side]}/$pkg" "$GO" test -c -trimpath -o "$(binary $side "$pkg")" . >/dev/null
	done
done

# turn runs the benchmarks of a package on one side.
turn() {
	local binary
	binary=$(binary "$1" "$2")
	[ -x "$binary" ] || return 0 # there is no such package, or it has no tests
	at "${root[$1]}/$2" "$binary" -test.run '^$' -test.bench "$BENCH" -test.benchtime "$BENCHTIME" -test.benchmem >"$tmp/turn.txt" 2>&1 || {
		echo "$1 $2 failed:" >&2
		cat "$tmp/turn.txt" >&2
		exit 1
	}
	cat "$tmp/turn.txt" >>"$tmp/$1.txt"
}

for ((n = 1; n <= COUNT; n++)); do
	echo "turn $n of $COUNT" >&2
	first=base second=work
	((n % 2)) || first=work second=base
	for pkg in $PKGS; do
		turn $first "$pkg"
		turn $second "$pkg"
	done
done

grep -q '^Benchmark' "$tmp/base.txt" "$tmp/work.txt" || { echo "no benchmark of $PKGS is called $BENCH" >&2; exit 1; }
(cd "$tmp" && "$benchstat" "$BASE=base.txt" work=work.txt)
