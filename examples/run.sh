#!/bin/sh
# Serves the example site with the program given, and tells what to open.
set -eu
program=$1
cd "$(dirname "$0")/.."
config=examples/h2o.conf
# Started by root the server becomes `nobody`, who may not be allowed to look into this directory.
if [ "$(id -u)" = 0 ] && ! setpriv --reuid=nobody --clear-groups test -r examples/site/index.html 2>/dev/null; then
    mkdir -p target
    config=target/example.conf
    { cat examples/h2o.conf; printf '\nuser: root\n'; } >$config
fi
cat <<TEXT

  Open  http://localhost:8080/   or   https://localhost:8443/

  The certificate was made on this machine, so the browser will ask.
  Ctrl-C ends the server.

TEXT
exec "$program" -c $config
