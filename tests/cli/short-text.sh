# A text that is too short is refused, and the line says how many tokens are needed.  SPDX-License-Identifier: MIT
synthetic m.gguf
echo 'ten tokens' >short.txt
: >empty.txt
text 60 >t.txt
quick cost m.gguf -f short.txt
quick imatrix m.gguf -f short.txt -o i.gguf
quick measure m.gguf m.gguf -f short.txt
quick measure m.gguf m.gguf -f t.txt -f short.txt
quick cost m.gguf -f empty.txt
quick quantize m.gguf out.gguf --size 2MB -f short.txt
# Nor is an archive made for other mistakes.
quick cost m.gguf -f absent.txt
quick cost m.gguf -f t.txt --imatrix absent.gguf
quick quantize m.gguf out.gguf --size 2MB -f absent.txt
quick imatrix m.gguf -f absent.txt -o i.gguf --archive a
ls
