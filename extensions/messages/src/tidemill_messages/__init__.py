"""Jobs, results and syncs by a message broker (RabbitMQ, AMQP 0-9-1), beside HTTP."""
