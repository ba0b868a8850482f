#!/bin/bash
for log in logs/*.log; do
  name=$(basename "$log" .log)
  awk -v name="$name" '$4 >= 500 { print name, $0 }' "$log"
done | sort -k2,2 > errors.txt
cat logs/*.log | awk '$4 == 200' | sort -k5,5n | tail -n 1 | cut -d ' ' -f 3 > slowest.txt
