"""Families of transformers that read text: decoders, encoders, both; mixtures of experts, state spaces."""

from benchmarks.unchanged.program import Group
from benchmarks.unchanged.tiny_transformers import add_families

GROUP = Group("transformers")
add_families(
    GROUP,
    """
    afmoe albert apertus arcee aria_text bart beam bert bert-generation big_bird bigbird_pegasus biogpt bitnet
    blenderbot blenderbot-small bloom camembert canine clip_text_model cohere cohere2 cohere2_moe convbert cpmant ctrl
    cwm data2vec-text deberta deberta-v2 deepseek_v4 diffllama distilbert doge dots1 dpr electra ernie ernie4_5
    ernie4_5_moe esm eurobert exaone4 exaone_moe falcon falcon_h1 falcon_mamba flaubert flex_olmo flint fnet fsmt funnel
    gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss granite granite_swa
    granitemoe granitemoe_swa granitemoeshared gte helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4
    hyperclovax ibert imagegpt inkling_text jais2 jetmoe jina_embeddings_v3 kolibri1 kosmos-2.5 laguna layoutlm led lfm2
    llama llama4_text longformer longt5 m2m_100 mamba marian markuplm mbart megatron-bert mellum mimo_v2_flash minimax
    minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral mllama mobilebert modernbert modernbert-decoder
    molmo2_text moshi mpnet mpt mra mt5 muse_glimmer_text mvp nanochat nemotron nemotron_h nllb-moe nomic_bert
    nystromformer olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt openai_privacy_filter opt pegasus pegasus_x persimmon
    phi phi3 phimoe plbart prophetnet qwen2 qwen2_moe qwen3 qwen3_moe qwen3_vl_moe_text qwen3_vl_text recurrent_gemma
    rembert roberta roberta-prelayernorm roformer rwkv sam3_lite_text_text_model seed_oss smollm3 solar_open splinter
    squeezebert stablelm starcoder2 switch_transformers t5 t5gemma tapas tipsv2_text_model trocr ultrabert umt5
    vaultgemma visual_bert xglm xlm xlm-roberta xlm-roberta-xl xlnet yoso
    """,
)
