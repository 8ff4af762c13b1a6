#!/bin/sh
# Builds the peers that compare.py and accuracy.py measure against, under the folder given. Takes 10 to 15 minutes on two
# cores, network access to PyPI, a C++ compiler and cmake; what is there already is kept.
#
#   build_peers.sh FOLDER [PYTHON]
#
#   FOLDER/bin/llama-server     llama.cpp of the llama-cpp-python source package, Release, for this machine's CPU
#   FOLDER/llama/bin/python     its Python binding over the same library, for accuracy.py
#   FOLDER/openvino/bin/python  OpenVINO GenAI
set -eu

LLAMA_CPP_PYTHON=0.3.36
OPENVINO_GENAI=2026.4.1.0

mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${2:-python3}
source=$folder/llama_cpp_python-$LLAMA_CPP_PYTHON

environment() { # NAME PACKAGE...
    name=$1
    shift
    [ -x "$folder/$name/bin/python" ] || "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip --disable-pip-version-check --quiet install "$@"
}

environment openvino "openvino-genai==$OPENVINO_GENAI"
environment llama numpy typing-extensions diskcache jinja2 cmake ninja scikit-build-core

if [ ! -d "$source" ]; then
    # Its metadata needs a build tool but no build: that is done below, once for the server and the binding.
    "$folder/llama/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps --no-binary :all: \
        --no-build-isolation --dest "$folder" "llama-cpp-python==$LLAMA_CPP_PYTHON"
    tar -xzf "$source.tar.gz" -C "$folder"
fi

if [ ! -x "$folder/bin/llama-server" ]; then
    PATH=$folder/llama/bin:$PATH
    cmake -S "$source/vendor/llama.cpp" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    cmake --build "$folder/build" --target llama-server
    ln -sfn build/bin "$folder/bin"
fi

# The binding loads the library from its own lib folder.
mkdir -p "$source/llama_cpp/lib"
ln -sf "$folder"/build/bin/lib*.so* "$source/llama_cpp/lib/"
echo "$source" > "$("$folder/llama/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/llama_cpp.pth"
"$folder/llama/bin/python" -c 'import llama_cpp; print("llama-cpp-python", llama_cpp.__version__)'
"$folder/openvino/bin/python" -c 'import openvino_genai; print("OpenVINO GenAI", openvino_genai.get_version())'
