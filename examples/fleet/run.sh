#!/bin/sh
# Runs a fleet on this machine until Ctrl-C: three servers behind HAProxy, which share ticket keys through Redis.
#
#   sh examples/fleet/run.sh PROGRAM [DIRECTORY]      (default: target/fleet)
#
# Ports: FLEET_PORT (8443), SERVER_PORT_1 to 3 (8444 to 8446), FLEET_REDIS_PORT (8447).
set -eu
program=$(command -v "$1")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${2:-target/fleet}"
dir=$(cd "${2:-target/fleet}" && pwd)

export FLEET_PORT="${FLEET_PORT:-8443}" FLEET_SITE="${FLEET_SITE:-$here/../site}"
export SERVER_PORT_1="${SERVER_PORT_1:-8444}" SERVER_PORT_2="${SERVER_PORT_2:-8445}" SERVER_PORT_3="${SERVER_PORT_3:-8446}"
export FLEET_CERTIFICATE="$dir/cert.pem" FLEET_KEY="$dir/key.pem" FLEET_REDIS_PORT="${FLEET_REDIS_PORT:-8447}"

sh "$here/../make-cert.sh" "$dir"

config=$here/h2o.conf
# A server that root starts changes to the user `nobody`, who may not be able to read this directory.
if [ "$(id -u)" = 0 ]; then
    config=$dir/h2o.conf
    { cat "$here/h2o.conf"; printf '\nuser: root\n'; } >"$config"
fi

processes=
# shellcheck disable=SC2086
trap 'trap - EXIT; kill $processes 2>/dev/null; wait' EXIT
trap 'exit 0' INT TERM

redis-server --bind 127.0.0.1 --port "$FLEET_REDIS_PORT" --save '' --dir "$dir" --logfile "$dir/redis.log" &
processes=$!
for number in 1 2 3; do
    eval "port=\$SERVER_PORT_$number"
    SERVER_PORT=$port SERVER_PID_FILE=$dir/server-$number.pid SERVER_LOG=$dir/server-$number.log \
        SERVER_FIELD="x-served-by: server-$number" "$program" -m master -c "$config" &
    processes="$processes $!"
done
haproxy -q -f "$here/haproxy.cfg" &
processes="$processes $!"

cat <<TEXT

  Open     https://localhost:$FLEET_PORT/   (the field x-served-by names the server)
  Upgrade  sh examples/fleet/upgrade.sh $dir
  Ctrl-C ends the fleet.

TEXT
wait
