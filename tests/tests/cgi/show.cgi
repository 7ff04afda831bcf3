#!/usr/bin/perl
use strict;
print "Content-Type: text/plain\n\nPerl says $ENV{QUERY_STRING}\n", "x" x 200_000;
