#!/bin/sh
# Writes a file of two ticket keys: the one of before, and a new one that is used from now on.
#
#   sh examples/fleet/tickets.sh FILE [LIFETIME-IN-SECONDS]
#
# Run it on one machine twice in a lifetime, by cron for example, and copy the file to the others within the minute after
# which the new key is used. Servers notice the new file by themselves.
set -eu
file=$1
lifetime=${2:-86400}

now=$(date +%s)
hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
umask 077 # whoever has the keys can read recorded connections of TLS 1.2
{
    if [ -s "$file" ]; then
        # The newest key of the old file comes first.
        head -n 6 "$file"
    fi
} >"$file.old"
start=$now
[ -s "$file.old" ] && start=$((now + 60))
cat >"$file.new" <<KEY
- name: $(hex 16)
  cipher: aes-256-cbc
  hash: sha256
  key: $(hex 96)
  not_before: $start
  not_after: $((start + lifetime))
KEY
cat "$file.old" >>"$file.new"
rm "$file.old"
mv "$file.new" "$file"
