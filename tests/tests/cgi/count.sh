#!/bin/sh
# Prints how many processes of this script run at the moment.
printf 'Content-Type: text/plain\n\n'
: > "running.$$"
sleep 0.2
ls running.* | wc -l
rm "running.$$"
