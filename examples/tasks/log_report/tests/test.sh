#!/bin/bash
# The logs are taken from here, because those in /app may have been changed.
cd /tests
for log in logs/*.log; do
  awk -v name="$(basename "$log" .log)" '$4 >= 500 { print name, $0 }' "$log"
done | sort -k2,2 > /tmp/errors.txt
awk '$4 == 200' logs/*.log | sort -k5,5n | tail -n 1 | cut -d ' ' -f 3 > /tmp/slowest.txt

errors=0 slowest=0
cmp -s /tmp/errors.txt /app/errors.txt && errors=1
[ "$(cat /tmp/slowest.txt)" = "$(cat /app/slowest.txt 2> /dev/null)" ] && slowest=1
echo "{\"reward\": $((errors * slowest)), \"errors\": $errors, \"slowest\": $slowest}" > /logs/verifier/reward.json
