# The tree as an installed package, through links: to be sourced at the tree's root. Sets `view`, a folder that goes with
# the shell, and PYTHONPATH; nothing is installed.
view=$(mktemp -d)
trap 'rm -rf "$view"' EXIT
mkdir "$view/dsv41c"
ln -s "$PWD"/compiler/root/* "$view/dsv41c/"
for folder in compiler kernels runtime specs templates; do
  ln -s "$PWD/$folder" "$view/dsv41c/$folder"
done
export PYTHONPATH="$view${PYTHONPATH:+:$PYTHONPATH}"
