#!/bin/sh
# Makes a self-signed certificate for trying TLS on this machine: ECDSA P-256,
# for localhost, 127.0.0.1 and ::1, valid for a year. Files that exist are kept.
#
#   sh examples/make-cert.sh [DIRECTORY]      (default: tls/ beside this script)
set -eu

dir=${1:-$(dirname "$0")/tls}
cert=$dir/cert.pem
key=$dir/key.pem

if [ -s "$cert" ] && [ -s "$key" ]; then
    exit 0
fi
if ! command -v openssl >/dev/null; then
    echo "make-cert.sh: the openssl program is needed to make $cert" >&2
    exit 1
fi

mkdir -p "$dir"
umask 077 # only the owner may read the key
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -days 365 \
    -subj "/CN=localhost" \
    -addext "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1" \
    -addext "basicConstraints=critical,CA:FALSE" \
    -addext "extendedKeyUsage=serverAuth" \
    -keyout "$key.new" -out "$cert.new" 2>/dev/null
# Key and certificate are renamed at the end, so that an interrupted run does not leave a pair that does not match.
mv "$key.new" "$key"
mv "$cert.new" "$cert"
chmod 644 "$cert"
echo "made $cert"
