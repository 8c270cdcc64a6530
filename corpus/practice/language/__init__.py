"""Language models, taggers, classifiers of text, sequence to sequence."""
