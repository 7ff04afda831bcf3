#!/bin/sh
# Serves the example site with the program given as argument, and prints which addresses to open and who else can open them.
set -eu
program=$1
cd "$(dirname "$0")/.."
config=examples/h2o.conf
# A server that root starts changes to the user `nobody`, who may not be able to read this directory.
if [ "$(id -u)" = 0 ] && ! setpriv --reuid=nobody --clear-groups test -r examples/site/index.html 2>/dev/null; then
    mkdir -p target
    config=target/example.conf
    { cat examples/h2o.conf; printf '\nuser: root\n'; } >$config
fi
# The addresses of this machine, if the program `hostname` can print them.
addresses=$(hostname -I 2>/dev/null | sed 's/ *$//; s/ /, /g') || addresses=
cat <<TEXT

  Open    http://localhost:8080/   or   https://localhost:8443/
  Status  http://localhost:8081/   (for this machine only)

  Ports 8080 and 8443 are open on all addresses of this machine${addresses:+ ($addresses)}.
  To keep the site to yourself, write \`host: 127.0.0.1\` into both \`listen\` of examples/h2o.conf.

  The certificate was made on this machine, so the browser will ask.
  Ctrl-C ends the server.

TEXT
exec "$program" -c $config
