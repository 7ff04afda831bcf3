#!/bin/sh
# Prints what a script receives: some variables, its directory and the content of the request.
echo "Status: 201 Made"
echo "Content-Type: text/plain"
echo
echo "$REQUEST_METHOD $SCRIPT_NAME $PATH_INFO $QUERY_STRING"
echo "authorization: $HTTP_AUTHORIZATION"
basename "$PWD"
echo "complaint of the script" >&2
cat
