# Read by llama.cpp's own CMakeLists. What computes is ggml; libllama builds graphs and reads
# vocabularies, and takes half as long to compile with fewer optimizations.
cmake_language(DEFER CALL target_compile_options llama PRIVATE -O1)
