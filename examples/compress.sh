#!/bin/sh
# Writes the .gz, .br and .zst variants that "file.send-compressed: ON" serves,
# for every page, style sheet and script of the site. Run it after an edit.
#
#   sh examples/compress.sh            write the variants
#   sh examples/compress.sh --check    say which are missing or stale, exit 1 if any
set -eu

cd "$(dirname "$0")/site"

# Decompresses a variant with the program that its name calls for.
decode() {
    case $1 in
    *.gz) gzip -dc "$1" ;;
    *.br) brotli -dc "$1" ;;
    *.zst) zstd -dcq "$1" ;;
    esac
}

sources() {
    find . \( -name '*.html' -o -name '*.css' -o -name '*.js' \) -not -path './downloads/*' | sort
}

if [ "${1-}" = --check ]; then
    stale=0
    for file in $(sources); do
        for variant in "$file.gz" "$file.br" "$file.zst"; do
            if ! [ -f "$variant" ] || ! decode "$variant" | cmp -s - "$file"; then
                echo "stale: examples/site/${variant#./}"
                stale=1
            fi
        done
    done
    exit "$stale"
fi

for file in $(sources); do
    gzip -9nc "$file" >"$file.gz" # without name and time (-n) the same input gives the same file
    brotli -q 11 -fk -o "$file.br" "$file"
    zstd -19 -qf -o "$file.zst" "$file"
done
