#!/bin/sh
# Upgrades the servers of a fleet, one after the other: each starts a worker with the current binary and configuration. The next server is
# upgraded when the old worker has ended, or after a minute.
#
#   sh examples/fleet/upgrade.sh [DIRECTORY]      (default: target/fleet)
set -eu
dir=${1:-target/fleet}

workers() { cat "/proc/$1/task/$1/children"; }

for file in "$dir"/server-?.pid; do
    supervisor=$(cat "$file")
    old=$(workers "$supervisor")
    kill -HUP "$supervisor"
    waited=0
    for worker in $old; do
        while workers "$supervisor" | grep -qw "$worker" && [ $waited -lt 600 ]; do
            sleep 0.1
            waited=$((waited + 1))
        done
    done
    echo "$(basename "$file" .pid) is upgraded"
done
