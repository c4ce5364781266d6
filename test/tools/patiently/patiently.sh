#!/usr/bin/env bash
# patiently.sh WHAT COMMAND ... runs the command, passes on what it prints, and exits
# with its status. While the command prints nothing, it prints every ten seconds
# (PATIENTLY_SECONDS) on the error output what is being done, so that a long step never
# looks hung.
set -uo pipefail

readonly silence="${PATIENTLY_SECONDS:-10}"
readonly what="$1"
shift

# The command is interrupted too, and may have to tell how it ends. Until it has, its
# output is read: from the start, since the reader inherits what is ignored here.
trap '' INT TERM

(trap - INT TERM && exec "$@") 2>&1 | {
	begun=''
	while true; do
		IFS= read -r -t "$silence" line
		status=$?
		if [ "$status" -eq 0 ]; then
			printf '%s\n' "$begun$line"
			begun=''
		elif [ "$status" -gt 128 ]; then
			begun="$begun$line"
			printf '%s: %d s\n' "$what" "$SECONDS" >&2
		else
			printf '%s' "$begun$line"
			break
		fi
	done
}
exit "${PIPESTATUS[0]}"
