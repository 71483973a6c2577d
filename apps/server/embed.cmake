# SOURCE as the bytes of ef::server::page() in OUT.
file(READ ${SOURCE} hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include \"apps/server/page.h\"\n\nnamespace ef::server {\n\nnamespace {\nconst unsigned char kPage[] = {\n${bytes}\n};\n}\n
std::string_view page() { return {reinterpret_cast<const char*>(kPage), sizeof kPage}; }\n\n}\n")
