"""Compiles the released model in memory, without torch, and reads in the plan who makes what for whom."""

from dsv41c.compiler import compile_spec, load


def main() -> None:
    plan = compile_spec(load("deepseek-v4.1-flash", target="rocm8"))
    manifest = plan.manifest
    print(
        f"{manifest.name}: {len(manifest.ops)} ops in {len(manifest.regions)} regions on {len(manifest.stages)} devices"
    )

    layer_of = {op.id: op.layer for op in manifest.ops}
    for value in manifest.values:
        if value.kind == "topk" and value.producer and ".transfer." not in value.producer:
            layers = sorted({layer for op in value.readers if (layer := layer_of[op]) is not None})
            print(f"{value.id} on {value.device}: read on the same device by layers {layers}")

    for transfer in manifest.transfers:
        if transfer.to_stage == 6:
            print(f"to stage 6: {transfer.value}, {transfer.bytes_per_token:g} bytes a token ({transfer.how})")

    stage = plan.files["stage_4.py"]
    print(stage[stage.index("def layer_21") :].split("\n\n")[0])


if __name__ == "__main__":
    main()
