"""The engine on a real Kafka, beside stock Faust and a plain aiokafka loop, in one run."""
