"""Families of transformers that see or hear, alone or beside text."""

from benchmarks.unchanged.program import Group
from benchmarks.unchanged.tiny_transformers import add_families

GROUP = Group("transformers")
add_families(
    GROUP,
    """
    aimv2 altclip blip chinese_clip clipseg flava git groupvit owlv2 owlvit tipsv2 vilt aimv2_vision_model beit
    chinese_clip_vision_model clip clip_vision_model data2vec-vision deit dinov2 dinov2_with_registers dinov3_vit dpt
    focalnet glpn idefics3_vision ijepa internvl_vision metaclip_2 mlcd_vision_model mobilenet_v1 mobilenet_v2 mobilevit
    pixio pixtral pp_lcnet pvt_v2 qianfan_ocr_vision radio sam3_vit_model sam_hq_vision_model sam_vision_model sapiens2
    segformer siglip siglip_vision_model smolvlm_vision swiftformer tipsv2_vision_model vit vit_mae vit_msn vitdet yolos
    """,
)
add_families(
    GROUP,
    """
    data2vec-audio glmasr_encoder higgs_audio_v2 hubert lasr_ctc lasr_encoder nemotron3_5_transcribe_asr_audio
    nemotron3_diarization_audio nemotron_asr_streaming_encoder parakeet_ctc parakeet_encoder seamless_m4t
    seamless_m4t_v2 sew sew-d unispeech unispeech-sat voxtral_realtime_encoder wav2vec2 wav2vec2-conformer wavlm whisper
    """,
)
