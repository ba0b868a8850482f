#!/bin/bash
tr -cs 'A-Za-z' '\n' < book.txt | tr 'A-Z' 'a-z' | grep . | sort | uniq -c | sort -k1,1nr -k2,2 | head -n 5 \
  | awk '{ print $2, $1 }' > words.txt
