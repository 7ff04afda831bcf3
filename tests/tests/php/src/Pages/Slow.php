<?php
namespace Pages;

final class Slow implements \Page
{
    public function answer(\Request $request): \Response
    {
        sleep(30);
        return new \Response('late');
    }
}
