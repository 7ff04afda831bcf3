#!/bin/sh
# Says how many of its kind run at the moment.
printf 'Content-Type: text/plain\n\n'
: > "running.$$"
sleep 0.2
ls running.* | wc -l
rm "running.$$"
