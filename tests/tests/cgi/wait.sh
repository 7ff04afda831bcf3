#!/bin/sh
# Sends a line now and then until it gets SIGTERM, which it notes in a file beside it.
trap 'echo ended > ended; exit' TERM
printf 'Content-Type: text/plain\n\n'
while :; do
	echo line
	sleep 0.05
done
